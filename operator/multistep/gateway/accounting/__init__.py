"""The cost of model requests, and the budgets that limit it.

request_ledger     one row per request, in sqlite, from before it is sent until its usage is known, and the thread that writes it
ledger_rows        the row of one request
budgets            a request is sent only if its upper bound fits
prices             what a usage or an answer costs
upper_bounds       upper bounds of a request's tokens and cost
step_usage         usage of a step, as the operator reads it
unanswered         requests of a judge that got no answer
open_steps         the open requests of each step, and the closed steps
parsing_turns      queue of the large documents to parse
waiting_seconds    how long the provider refused each step's requests, or sent nothing
"""
