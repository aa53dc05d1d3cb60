"""Runs one reconcile of one sweep.

In: the sweep's key, facts of its trials. Out: trials, status, Events. Open reconcile_sweep.py first.

reconcile_sweep      one reconcile: observe, decide (engine.sweep), act, report errors
sweep_run            state of a sweep during a reconcile, writes status, emits Events
create_trials        creates, adopts and changes trials
trial_cache          caches a few facts of each trial
decide_at_start      tasks of spec.tasksFrom, the regraded sweep, checkpoints of branches
decision_records     immutable ConfigMaps with decisions that are made once
"""
