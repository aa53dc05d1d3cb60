"""The log outside of all pods: one line for each phase that began, as the phase itself tells it over the network."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

LINE_SECONDS = 30.0


@dataclass(frozen=True)
class Line:
    """What a phase told. pod: its host name, which is the pod's."""

    pod: str
    step: str
    phase: str


@dataclass
class OutsideLog:
    """All lines in the order in which they came."""

    lines: list[Line] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take down one line. Nobody sends it again: what is not answered is missing, and that is found out."""
        with suppress(OSError, TimeoutError, ValueError):
            async with asyncio.timeout(LINE_SECONDS):
                pod, step, phase = (await reader.readline()).decode().split()
                self.lines.append(Line(pod, step, phase))
                writer.write(b"noted\n")
                await writer.drain()
        writer.close()

    def of(self, pods: set[str]) -> list[tuple[str, str]]:
        """Steps and phases that these pods told, in order."""
        return [(line.step, line.phase) for line in self.lines if line.pod in pods]


@asynccontextmanager
async def outside_log(listening: socket.socket) -> AsyncIterator[OutsideLog]:
    """A log that is open for a while."""
    log = OutsideLog()
    server = await asyncio.start_server(log.serve, sock=listening)
    try:
        yield log
    finally:
        server.close()
