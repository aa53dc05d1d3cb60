"""The operator's process: what runs, in which order it starts, and what ends it. Open operator.py first.

kopf_handlers    watches, start and end, as kopf's handlers
operator         composition: clients, lease, queues, reconcilers; exit when the lease is lost
route_events     watch events to work queues; counts of objects by phase
hold_lease       connects to the lease, ends the process when it is lost, releases it
endpoints        HTTP: results, metrics, probes and their checks
background_tasks tasks by name: if one fails, the operator is unhealthy; periodic work
"""
