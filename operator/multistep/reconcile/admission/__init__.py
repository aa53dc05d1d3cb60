"""Limits how many trials do the same at once, for example start a pod. The limits are fair between namespaces.

In: the key of a trial, and what it needs. Out: a slot, or a place in a queue that requeues the key when it gets its slot. No module
sends requests to the API server. Open admission.py first.

admission            all limits, and the release of what a reconcile acquired
concurrency_limit    one limit, and background jobs that run once for all objects that need them
pod_starts           limits starting pods, and decides which trial releases its pod if verifiers' pods fit no node
quotas               queues of trials whose pods exceed a ResourceQuota
model_slots          limits the active trials of each model, and adapts this limit to the model's load
"""
