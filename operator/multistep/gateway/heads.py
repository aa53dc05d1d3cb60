"""Limits the memory that connections and unfinished heads of requests need, in the gateway and in the operator.

aiohttp keeps up to 2 MiB of a head and waits for its end without a timeout. An agent, which needs no token to send heads, must not
fill the process's memory with them: if the gateway were OOM-killed, the trials of all agents would get another attempt. The head of
an honest request has a few KiB and arrives almost always in one piece.
"""

from __future__ import annotations

import asyncio
import resource
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Final, cast

from aiohttp import web

MAX_HEAD_BYTES: Final = 32 << 10
"""Maximum bytes of a request's line and headers that arrive in several pieces."""
MAX_UNFINISHED: Final = 256
"""Maximum number of unfinished heads from one address."""
MAX_CONNECTIONS: Final = 2048
"""Maximum number of connections from one address. One without a request takes about 6 KiB and a file descriptor."""
_CHUNK_SIZES: Final = 1024  # a chunked body may have this many bytes of chunk sizes, plus an eighth of its content
_END: Final = b"\r\n\r\n"


class Heads:
    """The number of connections and of unfinished heads by address. make: returns aiohttp's protocol for a new connection."""

    def __init__(self, make: Callable[[], asyncio.Protocol]) -> None:
        self._make = make
        self.connections = Counter[str]()
        self.unfinished = Counter[str]()

    def connection(self) -> asyncio.Protocol:
        """Return the protocol for a new connection."""
        return _Connection(self._make(), self)


async def listen(stack: AsyncExitStack, runner: web.AppRunner, host: str, port: int) -> int:
    """Start a server with these limits, and return its port. Its process may then open as many files as the container allows: many
    runtimes allow 1024 at first, which the connections of one agent could use up."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    runner.app.on_response_prepare.append(_expect_next_head)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    assert runner.server is not None
    connections = Heads(runner.server)
    server = await asyncio.get_running_loop().create_server(connections.connection, host, port, backlog=128)
    stack.callback(server.close)
    return int(server.sockets[0].getsockname()[1])


async def _expect_next_head(request: web.Request, response: web.StreamResponse) -> None:
    """Expect the next request's head after an answer that is not a stream. Called before the answer is sent, by
    on_response_prepare, because aiohttp sends some answers without a handler. A handler that sends a stream calls ``end``, or
    closes the connection."""
    if isinstance(response, web.Response):
        end(request, response)


def end(request: web.Request, response: web.StreamResponse) -> None:
    """Expect the next head. To be called before the answer's end is sent, because the client may send its next request at once.
    Close the connection after the answer if not all of the request has arrived, or more than the request: then not all bytes of the
    next head could be counted."""
    connection = None if request.transport is None else request.transport.get_protocol()
    if isinstance(connection, _Connection):
        body = getattr(request.content, "total_bytes", 0)  # aiohttp's reader of an empty body has no count
        sizes = body // 8 + _CHUNK_SIZES if "Transfer-Encoding" in request.headers else 0
        if request.content.is_eof():
            connection.expect_head()
        if not request.content.is_eof() or connection.received > body + sizes:
            response.force_close()
            response.headers["Connection"] = "close"


class _Connection(asyncio.Protocol):
    """Passes all calls to aiohttp's protocol. Breaks the connection if its head is too long, or if its address has too many
    unfinished heads or too many connections. received: number of bytes since the end of the last head."""

    def __init__(self, inner: asyncio.Protocol, heads: Heads) -> None:
        self._inner, self._connections, self._unfinished = inner, heads.connections, heads.unfinished
        self._transport: asyncio.Transport | None = None
        self._address = ""
        self._in_head, self._size, self._tail = True, 0, b""
        self.received = 0

    def expect_head(self) -> None:
        self._in_head = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._address = str((transport.get_extra_info("peername") or [""])[0])
        self._inner.connection_made(transport)
        self._connections[self._address] += 1
        if self._connections[self._address] > MAX_CONNECTIONS:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_head()
        self._connections[self._address] -= 1
        if not self._connections[self._address]:
            del self._connections[self._address]
        self._inner.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self._in_head:
            self.received += len(data)
        elif not self._is_allowed(data):
            assert self._transport is not None
            self._transport.abort()
            return
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def _is_allowed(self, data: bytes) -> bool:
        """Return whether the limits allow this piece of a head."""
        more = data if self._size else data.lstrip(b"\r\n")  # HTTP allows empty lines before a request
        text = self._tail + more
        if (end := text.find(_END)) >= 0:
            self._end_head()
            self._in_head, self.received = False, len(text) - end - len(_END)
            return True
        if more and not self._size:
            self._unfinished[self._address] += 1
        self._size, self._tail = self._size + len(more), text[-len(_END) + 1 :]
        return self._size <= MAX_HEAD_BYTES and self._unfinished[self._address] <= MAX_UNFINISHED

    def _end_head(self) -> None:
        if self._size:
            self._unfinished[self._address] -= 1
            if not self._unfinished[self._address]:
                del self._unfinished[self._address]
        self._size, self._tail = 0, b""
