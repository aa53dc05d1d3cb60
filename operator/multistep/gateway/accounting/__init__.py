"""What requests cost, and what may be spent.

request_ledger     one row per request, in sqlite, from before it is sent until its usage is known
ledger_rows        such a row; ledger_thread: the thread that executes the ledger's statements
budgets            a request is sent only if its upper bound fits
upper_bounds       upper bounds of a request's tokens and cost; prices
step_usage         usage of a step, as the operator reads it
open_steps         requests of each step; steps that were closed
parsing_turns      the turns in which large documents are parsed
waiting_seconds    how long the provider refused a step's requests, or sent nothing
"""
