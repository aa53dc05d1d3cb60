"""Contents of the files that Harbor 0.25 writes. Pure; times are seconds since the epoch.

In: plan and journal of a trial; a sweep and the results of its trials. Out: texts by path. Open trial_files.py first.

trial_files         all files of a trial's directory; result.json, exception.txt
trial_config        config.json, lock.json
trial_log           trial.log
secret_variables    which variables hold secrets
job_files           the files of a job's directory
"""
