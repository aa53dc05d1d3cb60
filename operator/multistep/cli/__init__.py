"""multistep, also as `kubectl multistep`: parses options, calls multistep.client or multistep.report, and prints.

A command is imported only when it is called. Open main.py first. task/, trial/, sweep/, agent/, doctor/ and dashboard/ have the
commands of these names; image/ builds and loads images.

main, groups, exits, completion    the command group, exit codes
options                            options that several commands share
cluster                            the connection, which reports a server that does not answer
terminal                           all output
list_and_delete, stop              `list`, `delete` and `stop` of trials and sweeps
regrade, dataset                   the commands of these names
view, extras                       Harbor's viewer; optional packages
"""
