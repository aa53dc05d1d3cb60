"""Fetches remote tasks in a child process, which limits the damage that hostile servers and repositories can do.

In: a request on stdin (fetch_messages.py). Out: a bundle's file and its digest on stdout, or an error. Open __main__.py first.

__main__                       the process
git, oci, url, dataset         the kinds of sources
image_layers                   an image's layers, merged
registry_client                registries: API, names of images
http_client                    HTTP with limits; addresses to which the process may connect
output_file                    the file that is written, hashed and limited; tasks of an archive of many
fetch_messages                 JSON messages between operator and process
"""
