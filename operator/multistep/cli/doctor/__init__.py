"""`multistep doctor`: checks the cluster and the installation, and names the fix of each fault.

command                    options and output
observe                    reads the state of the cluster
permissions                the RBAC permissions that the user and the operator need, and which of them are granted
checks, operator_checks    the checks, as pure functions
"""
