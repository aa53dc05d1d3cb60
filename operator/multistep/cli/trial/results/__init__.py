"""`multistep results`, `open` and `verify`.

results                  `results`
fetch, unpack            fetches results from the URI in the status; unpacks an untrusted tar
open                     `open`
verify, verify_output    `verify` and its output
"""
