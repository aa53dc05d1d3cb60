"""Evidence of a trial's results: an in-toto statement about inputs and outcome, a list of all files, and a signature.

In: a finished trial's directory. Out: statement, list and envelope in it; for `multistep verify` the differences. Open writer.py
and compare_results.py.

writer             writes the evidence of a finished trial
statement          the statement; what other trials read of it
file_list          all files with digests; names of the evidence's files
signing            DSSE envelopes
compare_results    fetched results against their evidence
fetched_results    finds and reads fetched results
"""
