"""Models what has happened in a trial: its operations and their records.

In: records of the runner. Out: the Journal, from which other packages compute scores, status and results. Open journal.py and
operations.py first.

operations        requests to the runner, each with an id that makes it idempotent
journal           progress of a trial, rebuilt from its records
results_limits    how many bytes and files may be stored, and which large file the pod uploads itself
"""
