"""The operator's process: its components, their start and their end. Open operator.py first.

kopf_handlers    kopf's handlers of watch events, start and end
operator         connects clients, lease, queues and reconcilers, and starts and stops them
route_events     passes watch events to work queues, and counts objects by phase
hold_lease       acquires and releases the lease, and ends the process when the lease is lost
endpoints        HTTP servers of results, metrics and probes
background_tasks runs background tasks and periodic work
"""
