"""`multistep regrade`: verifies a trial or a sweep again, without its agent.

command    options
regrade    creates the trial or sweep, with the source's task or another version of it, and follows it
"""
