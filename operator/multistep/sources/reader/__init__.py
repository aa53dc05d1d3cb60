"""Reads a task in a child process with limits of CPU time, memory and files, so that the operator itself never unpacks or parses
user input.

The reader takes a bundle's file, and returns a ReadTask or raises the problems of the task. Open read_task.py first.

read_task        the operator's side, and the task that was read
fork_server      starts the fork server, and sends it an order for each task
__main__         the fork server, and the child's work
accept_task      reads a task and checks its size, also for `multistep check`
read_messages    JSON messages between operator and child
"""
