"""All decisions, as pure functions: no IO, no clock, no asyncio. The current time and the observed state are arguments.

A trial's script is a generator of operations. The journal is rebuilt by replaying the records of finished operations into the
script, which then yields the next operation. So a restarted operator continues exactly where the last one stopped. Open
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
