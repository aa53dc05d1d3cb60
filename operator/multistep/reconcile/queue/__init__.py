"""From a watch event to the next reconcile of an object.

work_queue       keys: one worker at a time per key, delayed requeues, back-off; results of a reconcile
event_filter     which watch events need a reconcile
error_outcome    what an error means: wait, retry, fail (one table)
"""
