"""multistep, also as `kubectl multistep`: parses options, calls, prints.

A command is imported only when it is called. Open main.py first. task/, trial/, sweep/, dataset/, agent/, regrade/, doctor/ and
dashboard/ have the commands of these names; image/ builds and loads images.

main, groups, exits, completion             the command group, exit codes
options, values                             options that several commands share; variables given by users
cluster                                     connection to the cluster
terminal                                    all output
list_and_delete                             `list` and `delete` of trials and sweeps
view, extras                                Harbor's viewer; optional packages
"""
