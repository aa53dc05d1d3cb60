"""`multistep shell` and `cp`: inside a trial's container.

shell        `shell`
cp           `cp`
container    the pod of a trial; connects the terminal with a command in it, copies files out of it
"""
