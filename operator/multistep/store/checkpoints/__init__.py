"""Checkpoints: the changes of each step to the environment's files, as one layer on top of the step before.

In: a stream of the runner. Out: layers, from which a later attempt, a regrade or a branch starts. Blocking code runs in threads.
Open checkpoint_store.py.

checkpoint_store    checkpoints of all trials, within limits
checkpoint_files    checkpoints in a trial's directory, and copies of them to another trial
"""
