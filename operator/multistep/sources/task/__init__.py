"""A task as files: packed, unpacked, checked.

In: bytes of a bundle, or a directory. Out: Task: config, layout, tar streams of its uploads. Open task.py and bundle.py first.

task                               config, layout and uploads of a bundle
bundle, bundle_links               deterministic tar.gz; symbolic links in it
read_compose                       the compose file, by the compose reader
harborignore                       files that are not uploaded
inline_bundle, configmaps          bundles in a trial's spec and in ConfigMaps
harbor_registry                    registry.json: datasets and their tasks
read_limits                        bytes, files and seconds that reading a task may cost
condition_reasons                  reasons of conditions for tasks that cannot be read or fetched
child_environment                  environment variables of the child processes
"""
