"""Loads tasks from ConfigMaps, inline text, registries, git repositories, URLs and datasets.

The loader takes spec.task, and returns the task and the trial's plan, or raises SourceError with a reason. User input is unpacked
and parsed only in child processes. Open load/load_trial.py first.

task/      a task's bundle, compose file and the tar streams of its uploads
reader/    reads a task in a child process with limits (python -m multistep.sources.reader)
fetch/     fetches a task in a child process (python -m multistep.sources.fetch)
load/      the operator's side, with requests, cache and plan
"""
