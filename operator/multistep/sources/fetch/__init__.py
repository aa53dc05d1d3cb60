"""Fetches remote tasks in a child process, which limits the damage that hostile servers and repositories can do.

The process reads a request on stdin (fetch_messages.py), writes a bundle to a file, and writes the file's digest or an error to
stdout. Open __main__.py first.

__main__                       the process
git, oci, url, dataset         one module for each kind of source
image_layers                   merges an image's layers
registry_client                client of registries, and image references
http_client                    HTTP client with limits, which connects only to allowed addresses
output_file                    writes the bundle's file within limits, and splits an archive of many tasks
fetch_messages                 JSON messages between operator and process
"""
