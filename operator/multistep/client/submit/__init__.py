"""From a task and a user's choices to a trial or a sweep in the cluster. Open create.py first.

create            checks by a dry run; creates a trial or a sweep, then the objects that it owns
manifests         their manifests, names and images; a Submission: all objects to create
trial_manifest    a Submission of a trial
sweep_manifest    a Submission of a sweep
regrade           a Submission that verifies a trial or a sweep again
agent_choice      spec.agent from an agent's name, its model and its options, or from a script
values            variables that users give, and their Secrets
"""
