"""Creates the files that Harbor 0.26 writes. The modules do no IO. Times are in seconds since the epoch.

The files of a trial's directory are created from its plan and journal. The files of a job's directory are created from a sweep and
its trials' results. Open trial_files.py first.

trial_files         all files of a trial's directory, with the contents of result.json, exception.txt and trial.log
trial_config        config.json, lock.json
exception_info      an exception, what follows it, and whether the reward counts
secret_variables    decides which variables hold secrets
job_files           the files of a job's directory
"""
