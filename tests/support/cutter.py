"""A TCP proxy before a real API server, to cut, stall and resume what goes through it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

from multistep.cluster.connection import Connection


class Cutter:
    """flowing: cleared to stall every connection, without ending any."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._writers: set[asyncio.StreamWriter] = set()
        self.flowing = asyncio.Event()
        self.flowing.set()

    def cut(self) -> None:
        """End all connections, as a load balancer's reset does."""
        for writer in self._writers:
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection(*self._target)
        self._writers |= {writer, there_writer}
        await asyncio.gather(self._pump(reader, there_writer), self._pump(there_reader, writer))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                await self.flowing.wait()
                writer.write(data)
                await writer.drain()
        writer.close()


@asynccontextmanager
async def cutter(connection: Connection) -> AsyncIterator[Cutter]:
    """Lead connection through a cutter from now on."""
    parts = urlsplit(connection.base_url)
    assert parts.hostname is not None
    proxy = Cutter(parts.hostname, parts.port or 443)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    connection._configuration.tls_server_name = parts.hostname
    connection.base_url = f"{parts.scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        proxy.flowing.set()
        proxy.cut()
        server.close()
