"""Where tasks come from: ConfigMaps, inline, registries, git, URLs, datasets.

In: spec.task. Out: a task and the plan of the trial, or SourceError with a reason. User input is unpacked and parsed in child
processes only. Open load/load_trial.py first.

task/      what a task is: bundle, compose file, tar streams of its uploads
reader/    reads a task in a child process with limits (python -m multistep.sources.reader)
fetch/     fetches a task in a child process (python -m multistep.sources.fetch)
load/      the operator's side: request, cache, plan
"""
