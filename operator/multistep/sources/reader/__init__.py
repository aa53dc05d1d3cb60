"""Reads a task in a child process with limits of CPU time, memory and files: the operator never unpacks or parses user input
itself.

In: a bundle's file. Out: ReadTask, or the problems of the task. Open read_task.py first.

read_task        the operator's side: a task that was read
fork_server      starts the fork server, sends it one order per child
__main__         the fork server, and the child's work
accept_task      reads a task and checks its size; `multistep check` calls it, too
read_messages    JSON messages between operator and child
"""
