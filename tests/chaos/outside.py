"""A log outside of all pods: each phase of a trial sends one line over the network when it starts."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

LINE_SECONDS = 30.0


@dataclass(frozen=True)
class Line:
    """One line of the log, sent by a phase that started. pod: the name of the phase's pod."""

    pod: str
    step: str
    phase: str


@dataclass
class OutsideLog:
    """The log's lines, in order of arrival."""

    lines: list[Line] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Record one line and acknowledge it. Clients do not retry: the verdict reports a missing line."""
        with suppress(OSError, TimeoutError, ValueError):
            async with asyncio.timeout(LINE_SECONDS):
                pod, step, phase = (await reader.readline()).decode().split()
                self.lines.append(Line(pod, step, phase))
                writer.write(b"ok\n")
                await writer.drain()
        writer.close()

    def of(self, pods: set[str]) -> list[tuple[str, str]]:
        """Return the pairs of step and phase that these pods logged, in order."""
        return [(line.step, line.phase) for line in self.lines if line.pod in pods]


@asynccontextmanager
async def outside_log(listening: socket.socket) -> AsyncIterator[OutsideLog]:
    """Accept log lines on the listening socket until the ``with`` block ends; yield the log, which starts empty."""
    log = OutsideLog()
    server = await asyncio.start_server(log.serve, sock=listening)
    try:
        yield log
    finally:
        server.close()
