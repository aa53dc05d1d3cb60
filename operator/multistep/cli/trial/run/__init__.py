"""`multistep run`. Open command.py, then run_trial.py.

command      options
run_trial    check the task, build its image, submit, follow, fetch results
follow       progress until the trial finishes
"""
