"""One reconcile of one sweep.

In: the sweep's key, facts of its trials. Out: trials, status, Events. Open reconcile_sweep.py first.

reconcile_sweep      observe, decide (engine.sweep), act, emit Events
trial_cache          a few facts of each trial
decide_at_start      tasks of spec.tasksFrom, the regraded sweep, checkpoints of branches
decision_records     immutable ConfigMaps: decisions that are made once
"""
