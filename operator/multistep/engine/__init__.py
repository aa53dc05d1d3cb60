"""All decisions, as pure functions: they do no IO and read no clock. The current time and the observed state are arguments.

A trial's script is a generator that yields the trial's operations, which are requests to the runner in the pod. To continue a
trial, the operator runs the script from its start and sends the stored records of the finished operations into it. The script fills
the journal, and then yields the next operation. So a restarted operator continues exactly where the last one stopped. Open
script/trial_script.py and script/replay.py first. A package imports only those below it:

builds/       state of a build -> next action
sweep/        sweep and its trials -> next trials, status of the sweep
script/       plan and records -> next operation
status/       journal -> status of the trial, conditions, trace
lifecycle/    trial and state of its pods -> next decision
score/        rewards, usage -> score, failure class
journal/      operations and their records
plan/         task and spec -> plan
"""
