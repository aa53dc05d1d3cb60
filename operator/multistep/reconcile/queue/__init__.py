"""Decides when an object is reconciled, after a watch event or an error.

work_queue       the queue of keys, with one worker at a time per key, delayed requeues and back-off
event_filter     which watch events need a reconcile
error_outcome    what an error means for its object: fail, wait or retry
"""
