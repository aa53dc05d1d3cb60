"""The directory of one trial: Harbor's layout, and internal data beside it.

In: downloads of a step. Out: files, changed atomically. Open directory.py first.

directory                         layout, atomic changes; the token that readers need
collect_files, unpack_download    stores what the operator collects from pods
volume_usage                      bytes and files of each trial
listing                           lists and reads results; results as a tar stream
disk_calls                        blocking calls in threads; their errors
object_manifest                   the list of a trial's files in the object store
"""
