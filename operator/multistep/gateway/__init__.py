"""The model gateway: an HTTP proxy through which agents call models without having the provider's key.

The gateway is a separate process (``python -m multistep.gateway``). docs/internals/gateway.md explains its design.

tokens       step tokens (JWT): which step may use which models       dialects     parsers of answers, one per API
routes       the paths that are forwarded                             bodies       model and token limits of a request
fair_queue   one queue per credential and model; sweeps take turns    events       regroups streams into server-sent events
budgets      budgets of trials and sweeps                             ledger       one row per request, in sqlite
prices       prices of tokens in US dollars                           usage        the sum of a step's usage
exchange     one request: queue, send, relay, record                  public       the port that agents call
admin        the port that the operator calls                         client       the operator's client of the admin port
heads        limits of connections and of unfinished heads of requests
"""
