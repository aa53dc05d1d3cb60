"""Training samples of a rollout, from the token records of its steps. Open read_samples.py first.

read_samples     reads the records of a trial's steps, and returns its samples
merge_records    records -> sequences with masks
sample           a sequence, and all sequences of a rollout
"""
