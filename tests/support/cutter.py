"""A TCP proxy before a real API server that can reset, stall and resume connections, or close idle ones."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from multistep.kube.connection import Connection


@dataclass
class _Line:
    """One proxied connection. last: monotonic time in seconds at which it last transferred data."""

    last: float = field(default_factory=time.monotonic)


class Cutter:
    """The proxy. flowing: clear this event to stall all connections. idle_cuts: number of connections closed as idle.

    idle_seconds: idle time (no data in either direction) after which the proxy closes a connection, as load balancers do.
    """

    def __init__(self, host: str, port: int, *, idle_seconds: float | None = None) -> None:
        self._target = (host, port)
        self._idle_seconds = idle_seconds
        self.idle_cuts = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self.flowing = asyncio.Event()
        self.flowing.set()

    def cut(self) -> None:
        """Reset all connections, as a load balancer does."""
        for writer in self._writers:
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection(*self._target)
        ends = {writer, there_writer}
        self._writers |= ends
        line = _Line()
        watching = asyncio.create_task(self._end_when_idle(line, ends))
        await asyncio.gather(self._pump(reader, there_writer, line), self._pump(there_reader, writer, line))
        watching.cancel()
        self._writers -= ends

    async def _end_when_idle(self, line: _Line, ends: set[asyncio.StreamWriter]) -> None:
        if self._idle_seconds is None:
            return
        while (left := line.last + self._idle_seconds - time.monotonic()) > 0:
            await asyncio.sleep(left)
        self.idle_cuts += 1
        for writer in ends:
            writer.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, line: _Line) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                line.last = time.monotonic()
                await self.flowing.wait()
                writer.write(data)
                await writer.drain()
        writer.close()


@asynccontextmanager
async def cutter(connection: Connection) -> AsyncIterator[Cutter]:
    """Route the client's `connection` through a new proxy from now on, and yield the proxy."""
    parts = urlsplit(connection.base_url)
    assert parts.hostname is not None
    async with listening(Cutter(parts.hostname, parts.port or 443)) as (proxy, port):
        connection._configuration.tls_server_name = parts.hostname
        connection.base_url = f"{parts.scheme}://127.0.0.1:{port}"
        yield proxy


@asynccontextmanager
async def listening(proxy: Cutter) -> AsyncIterator[tuple[Cutter, int]]:
    """Serve the proxy on 127.0.0.1; yield the proxy and its port."""
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    try:
        yield proxy, server.sockets[0].getsockname()[1]
    finally:
        proxy.flowing.set()
        proxy.cut()
        server.close()
