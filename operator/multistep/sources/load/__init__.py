"""Loads the task and the plan of a trial, on the operator's side.

For a trial, the loader returns a LoadedTrial, or raises an error with a condition's reason. Open load_trial.py first.

load_trial        returns the task and the plan of a trial
remote_tasks      builds the request to fetch a task, with credentials
fetch_process     runs the child process that fetches
task_cache        fetched tasks on the operator's disk
image_registry    finds the images that the cluster built
"""
