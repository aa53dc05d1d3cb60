"""Packs, reads and checks the files of a task.

A bundle is a task's directory as a tar.gz. From a bundle or a directory, these modules load a Task, which has the task's config,
its layout, and the tar streams of its uploads. Open task.py and bundle.py first.

task                    loads config, layout and uploads of a bundle
bundle, bundle_links    pack and read bundles, and resolve symbolic links in them
stored_bundles          bundles in ConfigMaps and in a trial's spec
read_compose            reads a compose file with the compose reader
harbor_registry         finds datasets and their tasks in a registry.json
read_limits             limits on bytes, files and seconds of the child processes, and their variables
"""
