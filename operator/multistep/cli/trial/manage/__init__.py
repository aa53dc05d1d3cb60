"""`multistep list`, `show`, `stop`, `retry` and `delete`: one module per command. retry_trial creates the retry of a trial."""
