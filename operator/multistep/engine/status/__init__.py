"""Builds the status of a trial, which the operator then writes.

In: the former status, the Journal, the current time. Out: TrialStatus, conditions, spans of the trace. Open trial_status.py first.

trial_status          a trial's status for each state, and its conditions
status_size           limits the size of a status, replaces values of secrets
tampering_findings    traces of tampering in a status
trace_spans           spans of a finished trial
"""
