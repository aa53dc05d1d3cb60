"""Decides which trials a sweep creates, when it stops creating trials, and what its results are.

In: sweep, facts of its trials, the current time. Out: manifests of trials, status. Open next_sweep_action.py first.

next_sweep_action  next actions of a sweep: create, suspend, resume and stop trials; expiry of its client's lease
sweep_status       status of a sweep: phase, reason, message, counts
next_trials        which trials are created next, counts, early halt, the trial that counts for each number
trial_grid         numbers and names of a sweep's trials
trial_manifests    manifests of trials, the facts of a trial that a sweep needs
plan_branches      branches, which are trials of one step
own_trials         which trials belong to a sweep
"""
