"""The files of a task as models, with the defaults and rules of Harbor 0.25.

In: a parsed task.toml, and the compose reader's answer. Out: models, or problems with the field's path. Open task_toml.py first.

task_toml            models of task.toml; attributes have the names of its keys; accelerators and their nodes
layout               which files a task directory has; the services of its compose file, as the compose reader prints them
allowed_names        rules for names and paths that a task's author chooses
suspicious_values    keys that Harbor ignores silently, numbers that are nan or infinite
"""
