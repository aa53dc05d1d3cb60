"""The operator's side of the fork server. It starts the server, and sends it an order for each task."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress

from multistep.errors import InvalidSpec, SourceError
from multistep.sources.reader.__main__ import STATUS
from multistep.sources.reader.read_messages import ReadAnswer, ReadOrder, parse_answer
from multistep.sources.task.read_limits import ANSWER_BYTES, CPU_SECONDS, WALL_SECONDS, child_environment

_COMMAND = (sys.executable, "-P", "-m", "multistep.sources.reader")
_LONGER_SECONDS = 5.0
_STARTS = 2  # maximum number of attempts to send an order, because the server may have been killed since the last one
_ANSWER_CHUNK = 1 << 18


class ForkServer:
    """The server process, which serves all reads. The first read starts it, and a later one restarts it if it was killed."""

    def __init__(self, cpu_seconds: int = CPU_SECONDS) -> None:
        """Set the limit of each read's CPU time. This does not start the process."""
        self._cpu_seconds = cpu_seconds
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    async def read(self, order: ReadOrder) -> ReadAnswer:
        """Read a task in a child. Raises InvalidTask, InvalidSpec or SourceError, and ReadFailed if the child does not answer."""
        output = b""
        code: int | None = None
        try:
            async with asyncio.timeout(WALL_SECONDS + _LONGER_SECONDS):
                output, code = await self._exchange(order.to_json())
        except TimeoutError:
            # The server kills a slow child earlier. So the server itself hangs, and the next read must start another server.
            self.close()
        if code == -signal.SIGXCPU:
            advice = "make patterns in .harborignore simpler, keys in task.toml shorter, or files and links fewer"
            raise InvalidSpec(f"spec.task: reading the task took more than {self._cpu_seconds} s of CPU time: {advice}")
        if code != 0:
            raise ReadFailed(f"the process that read the task {_how(code)}")
        try:
            return parse_answer(output)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ReadFailed(f"the process that read the task gave no answer: {type(error).__name__}") from None

    async def _exchange(self, order: bytes) -> tuple[bytes, int | None]:
        """Return the child's answer and exit status (None if unknown)."""
        loop = asyncio.get_running_loop()
        talk, talk_child = socket.socketpair()
        status, status_server = socket.socketpair()
        with talk, status:
            with talk_child, status_server:
                self._send(talk_child, status_server)
            talk.setblocking(False)
            status.setblocking(False)
            with suppress(ConnectionError):
                await loop.sock_sendall(talk, order)
                talk.shutdown(socket.SHUT_WR)
            output = bytearray()
            with suppress(ConnectionError):
                while len(output) <= ANSWER_BYTES and (data := await loop.sock_recv(talk, _ANSWER_CHUNK)):
                    output += data
            code = await loop.sock_recv(status, STATUS.size)
            return bytes(output), STATUS.unpack(code)[0] if len(code) == STATUS.size else None

    def _send(self, *sockets: socket.socket) -> None:
        for _ in range(_STARTS):
            control = self._control or self._start()
            try:
                socket.send_fds(control, [b"r"], [passed.fileno() for passed in sockets])
                return
            except OSError:
                self.close()
        raise ReadFailed("the process that reads tasks could not be started")

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                (*_COMMAND, str(self._cpu_seconds)),
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # a traceback may contain secrets
                env=child_environment(),
                start_new_session=True,
            )
        ours.setblocking(False)
        self._control = ours
        return ours

    def close(self) -> None:
        """Kill the server and its children."""
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None


class ReadFailed(SourceError):
    """A child died or did not answer. The task may not be the cause, so the read is retried a few times."""

    def __init__(self, message: str) -> None:
        super().__init__(message, transient=True, retry_seconds=5.0)


def _how(code: int | None) -> str:
    if code == -signal.SIGALRM or code is None:
        return f"did not end within {WALL_SECONDS:g} s"
    if code == -signal.SIGKILL:
        return "was killed: it took too long, or the node was short of memory"
    return f"ended with status {code}"
