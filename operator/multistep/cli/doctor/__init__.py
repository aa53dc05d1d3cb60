"""`multistep doctor`: checks the cluster and the installation, and names the fix of each fault.

command                    options and output
observe                    reads the state of the cluster
checks, operator_checks    the checks, as pure functions
"""
