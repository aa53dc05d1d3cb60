"""The model gateway: an HTTP proxy through which agents call models without having the provider's key.

The gateway is a separate process (``python -m multistep.gateway``), whose design is explained in docs/internals/gateway.md. It
takes requests that carry a step's token, returns the provider's answers byte for byte, and reports each step's usage to the
operator. It knows nothing of Kubernetes and trials. Open http/servers.py first, then http/model_request.py.

http/              the ports for agents and for the operator, one model request
operator_client    the operator's side
settings           MULTISTEP_GATEWAY_...
pace               queues of requests per credential and model
accounting/        ledger, prices, budgets, usage
model_api/         formats of the model APIs
keys/              step tokens, the providers' keys
"""
