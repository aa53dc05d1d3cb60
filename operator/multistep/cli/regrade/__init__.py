"""`multistep regrade`: verifies a trial or a sweep again, without its agent.

command         options
regrade         creates the trial or sweep, and follows it
changed_task    the source's task with other tests, or another version of it
"""
