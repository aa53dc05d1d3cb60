"""`multistep shell` and `cp`: inside a trial's container.

shell, interactive    `shell`; connects the terminal with a command in a container
cp, copy_files        `cp`; tar in the container writes an archive
container             finds the pod of a trial
"""
