"""Commands on trials.

outcome     a trial's outcome from its status: phase, faults, exit code
run/        run: checks, builds, submits, follows
results/    results, open, verify
logs/       logs
manage/     list, show, stop, retry, delete
inside/     shell, cp
"""
