"""Connects this process's terminal, or its stdin and stdout, with a command in a container."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

from multistep.errors import ClusterError, Unavailable
from multistep.kube.cluster_protocols import ExecStream

_BYTES = 64 * 1024


class TerminalStream(ExecStream, Protocol):
    """An exec session with a terminal."""

    async def resize(self, columns: int, rows: int) -> None: ...


class Session:
    """One command in a container. tty: whether the command has a terminal, which is connected to this process's terminal."""

    def __init__(self, *, tty: bool) -> None:
        self._tty = tty

    def write_error(self, data: bytes) -> None:
        """Write data of the command's stderr to this process's stderr."""
        sys.stderr.buffer.write(data)
        sys.stderr.buffer.flush()

    async def run(self, stream: TerminalStream) -> int:
        """Send input and show output until the command ends; return its exit code. Raises Unavailable if the connection breaks."""
        try:
            with _raw_terminal() if self._tty else _as_it_is():
                tasks = [asyncio.create_task(self._send(stream))]
                if self._tty:
                    tasks.append(asyncio.create_task(_keep_size(stream)))
                try:
                    await self._show(stream)
                finally:
                    for each in tasks:
                        each.cancel()
                    await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            await stream.close()
        status = stream.status
        if status is None or status.code is None:
            raise Unavailable(f"the command did not report how it ended: {stream.exit_details}")
        return status.code

    async def _show(self, stream: TerminalStream) -> None:
        try:
            while data := await stream.receive():
                sys.stdout.buffer.write(data)
                sys.stdout.buffer.flush()
        except ClusterError as error:
            raise Unavailable(f"the connection to the container broke: {error}") from error

    async def _send(self, stream: TerminalStream) -> None:
        with suppress(ClusterError):  # the command may end before it has read its input
            async for data in _input():
                await stream.send(data)
            await stream.send_eof()


async def _input() -> AsyncIterator[bytes]:
    """Yield the data of stdin. A thread reads it, because stdin may be a regular file, which the event loop cannot watch."""
    descriptor, loop = sys.stdin.fileno(), asyncio.get_running_loop()
    queue: asyncio.Queue[bytes] = asyncio.Queue(maxsize=4)

    def read() -> None:
        with suppress(RuntimeError, OSError):  # RuntimeError: the event loop is closed when the command has ended
            while True:
                data = os.read(descriptor, _BYTES)
                asyncio.run_coroutine_threadsafe(queue.put(data), loop).result()
                if not data:
                    return

    import threading

    threading.Thread(target=read, daemon=True).start()  # a daemon thread, because a read of a terminal cannot be interrupted
    while data := await queue.get():
        yield data


async def _keep_size(stream: TerminalStream) -> None:
    """Set the size of the command's terminal to that of this process's terminal, now and after each change."""
    changed = asyncio.Event()
    changed.set()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGWINCH, changed.set)
    try:
        while await changed.wait():
            changed.clear()
            await stream.resize(*shutil.get_terminal_size())
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)


@contextmanager
def _raw_terminal() -> Iterator[None]:
    """Switch this process's terminal to raw mode, so that each key, Ctrl-C too, reaches the command; restore it afterwards."""
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setraw(sys.stdin, termios.TCSADRAIN)  # unlike TCSAFLUSH, keeps input that was typed before
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


@contextmanager
def _as_it_is() -> Iterator[None]:
    yield
