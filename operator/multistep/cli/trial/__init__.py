"""Commands on trials.

run/        run: checks, builds, submits, follows
results/    results, open, verify
logs/       logs
manage/     list, show, stop, retry, delete
inside/     shell, cp
"""
