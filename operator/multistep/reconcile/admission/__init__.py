"""Limits how many trials do the same at once, for example start a pod. The limits are fair between namespaces.

In: the key of a trial, and what it needs. Out: a slot, or a place in a queue that requeues the key when it gets its slot. No module
sends requests to the API server. Open admission.py first.

admission            all limits, and the release of what a reconcile acquired
concurrency_limit    one limit
pod_starts           limits starting pods
quotas               queues of trials whose pods exceed a ResourceQuota
pod_rejections       decides whether to retry if the API server rejects a pod
unschedulable_verifiers   decides which trial releases its pods if verifiers' pods fit no node
model_slots          limits the active trials of each model, and adapts this limit to the model's load
"""
