"""Stores the results of trials, and serves them to readers.

The store takes tar streams and records of a trial's pod. It writes Harbor's trial directory to a volume and an object store,
checkpoints, and evidence. Open results_volume.py first. A package imports only the packages below it:

results_server    serves results over HTTP to readers that have the trial's token
history           lines about finished trials, which are never deleted with them
bucket/           the object store
results_volume    the results volume
evidence/         signed statements about results
checkpoints/      files of the environment after each step
harbor/           contents of the files that Harbor writes
trial/            the directory of a trial
files/            tar streams, trees, digests
"""
