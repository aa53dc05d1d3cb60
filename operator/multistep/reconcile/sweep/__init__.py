"""One reconcile of one sweep.

In: the sweep's key, facts of its trials. Out: trials, status, Events. Open reconcile_sweep.py first.

reconcile_sweep      observe, decide (engine.sweep), act
trial_cache          a few facts of each trial
resolve_tasks        the tasks of spec.tasksFrom, pinned
regrade_source       the sweep that is verified again
record_branches      the checkpoints from which branches start
decision_records     immutable ConfigMaps: decisions that are made once
emit_sweep_events    Events
"""
