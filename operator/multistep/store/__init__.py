"""Where results go, and who reads them.

In: tar streams and records of a trial's pod. Out: Harbor's trial directory on a volume or in an object store, checkpoints,
evidence. Open results_volume.py first. A package imports only those below it:

results_server    HTTP: results for readers with the trial's token
bucket/           the object store
results_volume    the results volume
evidence/         signed statements about results
checkpoints/      files of the environment after each step
harbor/           contents of the files that Harbor writes
trial/            the directory of a trial
files/            tar streams, trees, digests
"""
