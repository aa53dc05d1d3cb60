"""Models of the files of a task, with the defaults and rules of Harbor 0.26.

In: a parsed task.toml, and the compose reader's answer. Out: models, or problems with the field's path. Open task_toml.py first.

task_toml            models of task.toml, types of GPUs and TPUs with their node labels
layout               the files that a task directory has, and the services of its compose file
allowed_names        rules for names and paths that a task's author chooses
suspicious_values    keys that Harbor ignores silently, numbers that are nan or infinite
"""
