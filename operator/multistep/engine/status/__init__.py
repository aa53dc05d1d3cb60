"""The status that the operator writes.

In: the former status, Journal, the current time. Out: TrialStatus, conditions, spans of the trace. Open trial_status.py first.

trial_status        a trial's status for each state: pending, running, complete, failed
build_conditions    Complete, Failed, Suspended as in a Job; Ready, Reconciling, Stalled as in kstatus
status_size         limits the size of a status
redact_status       replaces values of secrets
trace_spans         spans of a finished trial
"""
