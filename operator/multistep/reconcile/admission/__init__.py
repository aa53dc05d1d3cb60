"""Who may use what now: limits that are fair between namespaces. Nothing here talks to the API server.

In: key of a trial, what it needs. Out: granted, or queued; the queue wakes the key when its turn comes. Open admission.py first.

admission            all limits, and the release of what a reconcile took
concurrency_limit    a limit: capacity, share of a namespace, order; jobs that run once for all objects that need them
pod_starts           pods that start; which trial gives way if verifiers' pods fit no node
quotas               trials whose pods exceed a ResourceQuota
model_slots          active trials of each model, and the load from which this limit adapts
"""
