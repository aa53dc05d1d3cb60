"""Contents of the files that Harbor 0.25 writes. Pure; times are seconds since the epoch.

In: plan and journal of a trial; a sweep and the results of its trials. Out: texts by path. Open trial_files.py first.

trial_files    config.json, result.json, trial.log and the other files of a trial's directory
job_files      the files of a job's directory
"""
