"""Fetches remote tasks in a child process, which limits the damage that hostile servers and repositories can do.

In: a request on stdin (fetch_messages.py). Out: a bundle's file and its digest on stdout, or an error. Open __main__.py first.

__main__                           the process
git, oci, url, dataset             the kinds of sources
registry_client, image_reference, image_layers    registries: API, names of images, merged layers
http_client, address_guard         HTTP with limits; addresses to which the process may connect
split_archive                      the tasks of an archive of many
output_file                        the file that is written, hashed and limited
fetch_messages                     JSON messages between operator and process
"""
