"""Checks a task's directory, without a cluster. Open validate.py, then examine.py.

task_directory    a task's directory: bundle, name, whether its image must be built
validate          checks a task before it is submitted
examine           all checks of a task, and its steps' plans
findings          findings and their locations: file, line, step
lint, no_effect, submission_imports    likely mistakes
"""
