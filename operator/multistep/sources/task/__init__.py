"""A task as files: packed, unpacked, checked.

In: bytes of a bundle, or a directory. Out: Task: config, layout, tar streams of its uploads. Open task.py and bundle.py first.

task                    config, layout and uploads of a bundle
bundle, bundle_links    deterministic tar.gz; symbolic links in it
stored_bundles          bundles in ConfigMaps and in a trial's spec
read_compose            the compose file, by the compose reader
harbor_registry         registry.json: datasets and their tasks
read_limits             bytes, files and seconds that reading a task may cost; variables of the child processes
"""
