"""From a watch event to the next reconcile of an object.

work_queue          keys: one worker at a time per key, delayed requeues, back-off
event_filter        which watch events need a reconcile
requeue             results of a reconcile: when to reconcile again
error_outcome       what an error means: wait, retry, fail (one table)
partial_parse       the valid fields of an object that is invalid
resource_version    order of resourceVersions
"""
