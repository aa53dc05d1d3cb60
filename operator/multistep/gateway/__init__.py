"""The model gateway: every model request of an agent or a verifier goes through it; only it has the provider's key.

The gateway is a separate process (``python -m multistep.gateway``). docs/internals/gateway.md explains its design.

tokens       step tokens (JWT): who may call which model              dialects     usage and end of an answer, per API
routes       the paths that are forwarded                             bodies       what a request's body asks for
fair_queue   one queue per credential and model; sweeps take turns    events       server-sent events, byte for byte
budgets      limits of steps and sweeps                               ledger       one row per request, in sqlite
prices       US dollars of tokens                                     usage        a step's usage, added up
exchange     one request: queue, send, relay, record                  public       the port that agents call
admin        the port that the operator calls                         client       the operator's side
"""
