"""The fork server, ``python -m multistep.sources.reader CPU_SECONDS``. It forks a child for each task that the operator reads.

The server has imported all modules that a read needs, so a child starts in milliseconds. The server's stdin is a socket. Each
message on it asks for one child, and passes two sockets: one for the order and the answer, one for the child's exit status.
"""

from __future__ import annotations

import gc
import os
import selectors
import signal
import socket
import struct
import sys
import time
from contextlib import suppress

from multistep.sources.reader.read_in_child import perform
from multistep.sources.reader.read_messages import Order
from multistep.sources.task.read_limits import WALL_SECONDS, limit_process

STATUS = struct.Struct("!i")
_LONGER_SECONDS = 2.0


class _Child:
    """A child that reads one task. The server kills the child at the deadline, in case the child's own timer fails."""

    def __init__(self, pid: int, status: socket.socket) -> None:
        self.pid = pid
        self.status = status
        self.fd = os.pidfd_open(pid)
        self.deadline = time.monotonic() + WALL_SECONDS + _LONGER_SECONDS

    def reap(self) -> None:
        """Send the finished child's exit status to the operator."""
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        with suppress(OSError):  # the operator may have stopped waiting for the status
            self.status.send(STATUS.pack(code), socket.MSG_DONTWAIT)
        self.status.close()
        os.close(self.fd)


def _work(order: socket.socket, cpu_seconds: int) -> None:
    """Read the order, read the task, and send the answer. Runs in the child."""
    limit_process(cpu_seconds)
    with order.makefile("rb") as stream:
        text = stream.read()
    order.sendall(perform(Order.from_json(text)))


def _fork(control: socket.socket, cpu_seconds: int) -> _Child | None:
    data, fds, _, _ = socket.recv_fds(control, 1, 2)
    if not data:
        return None
    order, status = (socket.socket(fileno=fd) for fd in fds)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            status.close()
            control.close()
            _work(order, cpu_seconds)
            code = 0
        finally:
            os._exit(code)
    order.close()
    return _Child(pid, status)


def main(cpu_seconds: int) -> None:
    """Fork a child for each message, and exit when the operator closes the socket. cpu_seconds: limit of each child's CPU time."""
    control = socket.socket(fileno=0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.collect()
    gc.freeze()  # so that garbage collections in children do not write to these memory pages, which would copy them
    children: dict[int, _Child] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select(timeout=1.0 if children else None):
                if key.fileobj is control:
                    child = _fork(control, cpu_seconds)
                    if child is None:
                        for each in children.values():
                            os.kill(each.pid, signal.SIGKILL)
                        return
                    children[child.fd] = child
                    selector.register(child.fd, selectors.EVENT_READ)
                else:
                    selector.unregister(key.fd)
                    children.pop(key.fd).reap()
            for each in children.values():
                if time.monotonic() > each.deadline:
                    os.kill(each.pid, signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]))
