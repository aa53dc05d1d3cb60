"""`multistep run`. Open command.py, then run_trial.py.

command              options
run_trial            check the task, build its image, submit, follow, fetch results
submit, manifests    creates the trial and the objects that it needs; their manifests
agent_choice         spec.agent from options or from a local script
follow               progress until the trial finishes
"""
