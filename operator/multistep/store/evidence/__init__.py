"""Evidence of a trial's results: an in-toto statement about the trial's inputs and outcome, a list of all files, and a signature.

statement: builds the statement   file_list: the list of all files   writer: writes both to the volume   signing: DSSE envelopes
predicate: the parts of the statement that other trials read   fetched_results: reads fetched results
check: compares fetched results with their evidence (`multistep verify`)
"""
