"""Yields a trial's operations from a generator, the script, and replays finished operations into it.

In: TrialPlan, records of finished operations. Out: Journal, and the next operation. Open trial_script.py, which has the structure
of docs/reference/semantics.md, and then replay.py.

trial_script             the operations of a trial, in order
regrade_script           the same for a trial that verifies another trial's steps again
replay                   sends records into a script, returns its next operation, finds forged records
operation_scope          ids of operations, errors of the environment
named_users              fails a trial that names users that its image lacks
verify_step              verification of a step
compare_verdicts         second verification of a step in a new pod
checkpoint_operations    stores and restores a step's files
choose_checkpoint        where the next attempt continues
network_switch           switches a pod between the networks of its phases
service_operations       a compose file's services: main's command and healthcheck, hooks, artifacts
inspect_environment      finds changes of the environment that could change a verdict
"""
