"""Evidence of a trial's results: an in-toto statement about inputs and outcome, a list of all files, and a signature.

The operator writes the evidence to the directory of a finished trial (writer.py). `multistep verify` compares fetched results with
their evidence (verify_results.py).

writer             writes the evidence of a finished trial
statement          builds the statement, and reads the parts that other trials need
file_list          lists all files with their digests
signing            DSSE envelopes
verify_results     compares fetched results with their evidence
fetched_results    finds and reads fetched results
"""
