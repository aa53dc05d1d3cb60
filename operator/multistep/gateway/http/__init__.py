"""The gateway's ports. Open servers.py first.

servers            the process: three HTTP servers and what their handlers share
agent_port         checks path, token, credential and model of a request
operator_port      registers credentials, ends steps' access; /metrics
model_request      a request that passed all checks: queue, send, relay, record
forward_answer     the answer, byte for byte, and its usage
connections        agents' connections; memory of connections and unfinished heads
gateway_metrics    metrics by agent and model
"""
