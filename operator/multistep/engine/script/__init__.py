"""A trial as a generator of operations, and its replay.

In: TrialPlan, records of finished operations. Out: Journal, and the next operation. Open trial_script.py (structure of
docs/reference/semantics.md), then replay.py.

trial_script             the operations of a trial, in order
regrade_script           the same for a trial that verifies another trial's steps again
replay                   feeds records to a script, returns its next operation; finds forged records
operation_scope          ids of operations, errors of the environment
named_users              users that an image lacks
verify_step              verification of a step; compare_verdicts: once more in a fresh pod
checkpoint_operations    stores and restores a step's files; choose_checkpoint: where the next attempt continues
network_switch           what a phase may reach
service_operations       a compose file's services: main's command and healthcheck, hooks, artifacts
inspect_environment      changes of the environment that could change a verdict
"""
