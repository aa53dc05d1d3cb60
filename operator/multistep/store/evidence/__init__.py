"""Evidence of a trial's results: an in-toto statement of what ran and what came out, a list of all files, and a signature.

statement: what the statement says   file_list: the list of all files   writer: writes them to the volume   signing: DSSE envelopes
places: reads fetched results        check: compares fetched results with their evidence (`multistep verify`)
"""
