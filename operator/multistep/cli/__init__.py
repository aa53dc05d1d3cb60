"""multistep, also as `kubectl multistep`: parses options, calls multistep.client or multistep.report, and prints.

A command is imported only when it is called, so the modules of commands import what is slow inside of functions. Open main.py
first.

main, groups, completion       the command groups; completion of names
exit_codes                     the exit code of an error or an outcome
options                        options that several commands share
cluster                        the connection to the cluster
terminal                       all output
costs                          tokens and costs, as commands print them
task/, trial/, sweep/          commands on tasks, trials and sweeps
manage/                        `list`, `show`, `stop`, `delete` and `retry` of trials and sweeps
image/                         images of tasks and of agents' programs
dashboard/, doctor/            `dashboard` and `doctor`
agent, dataset, regrade, view  the commands of these names
history, history_output        `history`
"""
