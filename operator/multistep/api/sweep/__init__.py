"""TrialSweep: tasks x agents x attempts.

In: an object of the API server. Out: models, from which the CRD is generated. Open sweep.py first.

sweep           the resource: spec and status
tasks_source    spec.tasksFrom: oci, git, url or dataset
branch          branches: trials of single steps, from the state that the agent left or the reference state
lease           the lease that the sweep's client renews while it is alive
"""
