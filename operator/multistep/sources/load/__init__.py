"""Loads the task and the plan of a trial, on the operator's side.

In: a trial. Out: Loaded: task, plan, uploads; or an error with a condition's reason. Open load_trial.py first.

load_trial        task and plan of a trial
remote_tasks      a request to fetch, with credentials
fetch_process     runs the child process that fetches
task_cache        fetched tasks on the operator's disk
image_registry    registry of the images that the cluster builds
"""
