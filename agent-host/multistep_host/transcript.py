"""Sends the output of an agent's commands to the client that waits for the answer, and writes it to a file of the agent's logs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

FILE = "output.txt"  # a file in the agent's logs of each step
MAX_BYTES = 16 << 20  # maximum size of the file, and of the output that the client gets in one request

Send = Callable[[bytes], Awaitable[None]]


async def discard(_: bytes) -> None:
    """Discard a block of output."""


class Transcript:
    """The output of all commands of one request. Output beyond MAX_BYTES is left out, because a hostile agent may print without
    end."""

    def __init__(self, file: BinaryIO, send: Send) -> None:
        self._file, self._send = file, send
        self._room = MAX_BYTES

    async def add(self, block: bytes) -> None:
        """Append a block of output. Wait while earlier blocks fill the connection to the client."""
        if not self._room:
            return
        block = block[: self._room]
        self._room -= len(block)
        self._file.write(block)
        await self._send(block)


@contextmanager
def transcript(directory: Path, send: Send) -> Iterator[Transcript]:
    """Write a transcript to FILE in the directory, in place of the previous one. At the end, delete the file if it is empty."""
    path = directory / FILE
    directory.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        try:
            yield Transcript(file, send)
        finally:
            if not file.tell():
                path.unlink()
