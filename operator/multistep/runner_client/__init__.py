"""Client of the runner, which is PID 1 of a trial's pod (docs/internals/runner-protocol.md).

The client performs operations of the engine over an exec stream, and returns the runner's records. It validates all answers,
because a process in the container may have taken the runner's place. Open session.py and perform_operations.py first.

session                an exec session, in which answers have the order of the requests
perform_operations     sends operations of the engine as requests
checkpoint_requests    requests that create and restore checkpoints
check_requests         checks requests by the runner's rules before they are sent
exchange               requests and answers, also those of the agent host's runner
frame_stream           frames over an exec stream, with timeouts
transfer_bodies        tar streams of uploads and downloads
"""
