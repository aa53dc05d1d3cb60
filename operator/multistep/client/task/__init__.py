"""Checks a task's directory, without a cluster. Open check_task.py first.

task_directory    a task's directory: bundle, name, whether its image must be built
check_task        all checks of a task, and its steps' plans
findings          findings and their locations: file, line, step
lint              likely mistakes; files_without_effect and agent_code_imports find two kinds of them
"""
