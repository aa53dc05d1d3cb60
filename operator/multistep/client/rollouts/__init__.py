"""Rollouts for training: groups of trials, and the samples of a trial from its token records. Open read_samples.py first.

read_samples     reads the records of a trial's steps, and returns its samples
merge_records    records -> sequences with masks
groups           runs groups of trials, cancels them, and pauses their model requests
open_sweep       the sweep to which the groups' tasks are appended
sample           a sequence, and all sequences of a rollout
"""
