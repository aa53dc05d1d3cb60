"""The gateway's ports. Open servers.py first, then model_request.py.

servers               the process: three HTTP servers and what their handlers share
agent_port            checks path, token, credential and model of a request
operator_port         registers credentials, ends steps' access; /metrics
request_types         what the handlers share; a request that passed all checks
model_request         such a request: queue, send, relay, record
request_outcome       what becomes of it: its row in the ledger, and what its answer shows about the provider
reserve_budget        the room in budgets that it needs, or why a budget refuses it
send_upstream         the request as the provider gets it
forward_answer        the answer, byte for byte, and its usage
client_connection     the agent's connection for one request
limit_connections     limits of connections and of unfinished heads
gateway_metrics       metrics by agent and model
"""
