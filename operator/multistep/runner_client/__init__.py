"""Client of the runner, PID 1 of a trial's pod (docs/internals/runner-protocol.md).

In: an exec stream, operations of the engine. Out: records. What the runner answers is validated: a process in the container may
have replaced it. Open session.py and perform_operations.py first.

session                an exec session: requests in order, answers in order
perform_operations     operations of the engine as requests
checkpoint_requests    the requests that need more than one message
check_requests         the runner's rules for requests, before they are sent
exchange               requests and answers; messages to the agent host's runner
frame_stream           frames, and frames over an exec stream, with timeouts
transfer_bodies        tar streams of uploads and downloads
"""
