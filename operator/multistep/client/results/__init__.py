"""Reads the results of trials from the address in status.results, through the API server or by HTTP.

fetch            all of a trial's results into a directory; a part of one file, or of a build's log
unpack           unpacks the untrusted tar
fetch_sweep      the results of a sweep's trials as Harbor's jobs
job_directory    the directory of one job
sync_history     the history of namespaces into a local database
"""
