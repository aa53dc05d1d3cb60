"""The gateway's ports. Open servers.py first, then model_request.py.

servers               the process with its three HTTP servers
agent_port            checks path, token, credential and model of a request
operator_port         registers credentials, starts and ends steps' access, serves /metrics
request_types         the services that the handlers share, and a request that passed all checks
model_request         queues and sends such a request, relays the answer, and records both
request_outcome       the request's row in the ledger, and what its answer shows about the provider
reserve_budget        reserves room in the budgets, or refuses the request
send_upstream         sends the request to the provider
refusals              decides whether and when to send a request again after 429, 503 or 529
forward_answer        forwards the answer byte for byte, and reads its usage
client_connection     the agent's connection for one request
limit_connections     limits connections and requests whose headers are incomplete
gateway_metrics       metrics by agent and model
"""
