"""The files of a task as models, with the defaults and rules of Harbor 0.25.

In: a parsed task.toml, and the compose reader's answer. Out: models, or problems with the field's path. Open task_toml.py first.

task_toml             models of task.toml; attributes have the names of its keys
layout                which files a task directory has: instructions, tests, solutions, compose files
compose_services      the services of a compose file, as the compose reader prints them
allowed_names         rules for names and paths that a task's author chooses
devices               types of accelerators, and the labels of nodes that have them
unknown_keys          keys that Harbor ignores silently
not_finite_numbers    numbers that are nan or infinite
"""
