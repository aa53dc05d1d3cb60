"""Commands on one trial. A module with the name of a command has its options.

run, run_trial               `run`: checks the task, builds its image, submits the trial, fetches its results
follow_trial, trial_view     progress until the trial finishes; what `run` and `show` print
results, open                `results` and `open`
verify, verify_output        `verify` and what it prints
logs                         `logs`
read_output, follow_output   read the output of a trial's phases once, or until the trial finishes
output_formats               the parts of a trial's output, and how they are printed
shell_and_cp, container      `shell` and `cp`; the container of a trial
"""
