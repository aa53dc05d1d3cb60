"""Records the token ids and log-probabilities of the model requests of a step whose claims ask for it.

In go the documents of answers. Out come the documents that the agent must get, and one file per step in the directory
``capture`` beside the ledger. Open request_capture.py first.

request_capture  the tokens of one request, from its answer to its records
record_limits    which limit forbids a record
step_files       the files of steps, until the operator has moved them to the results
weights          the version of the model's weights, and pauses in which they are replaced
"""
