"""Models of TrialSweep, a benchmark of tasks x agents x attempts.

In: an object of the API server. Out: models, from which the CRD is generated. Open sweep.py first.

sweep           the resource with its spec and status
tasks_source    spec.tasksFrom, the source of many tasks
"""
