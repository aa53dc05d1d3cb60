"""Stores checkpoints. A checkpoint is a layer with the changes that a step made to the environment's files, on top of the layer of
the step before.

The layers come from a stream of the runner. A later attempt, a regrade or a branch starts from them. Blocking code runs in threads.
Open checkpoint_store.py first.

checkpoint_store    checkpoints of all trials, within limits
checkpoint_files    checkpoints in a trial's directory, and copies of them to another trial
"""
