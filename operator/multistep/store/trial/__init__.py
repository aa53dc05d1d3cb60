"""The directory of one trial, in Harbor's layout, with internal data in hidden files. Changes are atomic. Open directory.py first.


directory                         the layout, and atomic changes
access_tokens                     the token that gives access to results
collect_files, unpack_download    stores the files that the operator collects from pods
volume_usage                      bytes and files of each trial
listing                           lists and reads results, also as a tar stream
disk_calls                        runs blocking calls in threads
object_manifest                   lists a trial's files in the object store
"""
