"""Connections of agents, and limits of the memory that connections and unfinished heads need."""

from __future__ import annotations

import asyncio
import resource
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Final, cast

from aiohttp import web

from multistep.gateway.pace import stopwatch

MAX_HEAD_BYTES: Final = 32 << 10
"""Maximum bytes of a request's line and headers that arrive in several pieces."""
MAX_UNFINISHED: Final = 256
"""Maximum number of unfinished heads from one address."""
MAX_CONNECTIONS: Final = 2048
"""Maximum number of connections from one address. One without a request takes about 6 KiB and a file descriptor."""
MAX_TOTAL: Final = 16_384
"""Maximum number of connections of a port; fewer if the process may open fewer than four times as many files."""
HEAD_SECONDS: Final = 30.0
"""Maximum time until a connection has sent the head of a request."""
_RESERVED_FILES: Final = 256  # for the ledger and all else that is no connection
_CHUNK_SIZES: Final = 1024  # a chunked body may have this many bytes of chunk sizes, plus an eighth of its content
_END: Final = b"\r\n\r\n"


class Heads:
    """The connections and the number of unfinished heads by address. make: returns aiohttp's protocol for a new connection; most:
    maximum number of connections."""

    def __init__(self, make: Callable[[], asyncio.Protocol], most: int = MAX_TOTAL) -> None:
        self._make = make
        self._most = most
        self._connections: dict[str, dict[_Connection, None]] = {}  # oldest first
        self._total = 0
        self.unfinished = Counter[str]()

    def connection(self) -> asyncio.Protocol:
        """Return the protocol for a new connection."""
        return _Connection(self._make(), self)

    def add(self, address: str, connection: _Connection) -> bool:
        """Count a new connection. Return whether it may stay; to make room for it, an idle one of another address may be ended."""
        own = self._connections.setdefault(address, {})
        own[connection] = None
        self._total += 1
        if len(own) > MAX_CONNECTIONS:
            return False
        if self._total <= self._most:
            return True
        crowd = max(self._connections.values(), key=len)
        idle = next((each for each in crowd if each.idle), None) if len(crowd) > len(own) else None
        if idle is not None:
            idle.end()
        return idle is not None

    def remove(self, address: str, connection: _Connection) -> None:
        """Count a connection no longer. Idempotent."""
        own = self._connections.get(address, {})
        if connection in own:
            del own[connection]
            self._total -= 1
        if not own:
            self._connections.pop(address, None)


async def listen(stack: AsyncExitStack, runner: web.AppRunner, host: str, port: int) -> int:
    """Start a server with these limits, and return its port. Its process may then open as many files as the container allows: many
    runtimes allow 1024 at first, which the connections of one agent could use up."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    runner.app.on_response_prepare.append(_expect_next_head)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    assert runner.server is not None
    connections = Heads(runner.server, max(1, min(MAX_TOTAL, (most - _RESERVED_FILES) // 4)))
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
        self._inner, self._heads, self._unfinished = inner, heads, heads.unfinished
        self._timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None
        self._address = ""
        self._in_head, self._size, self._tail = True, 0, b""
        self.received = 0

    @property
    def idle(self) -> bool:
        """Whether no request is being answered."""
        return self._in_head

    def expect_head(self) -> None:
        self._in_head = True
        self._limit_head()

    def end(self) -> None:
        """Break the connection. It no longer counts from now on: many new ones may arrive before it is lost."""
        assert self._transport is not None
        self._heads.remove(self._address, self)
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._address = str((transport.get_extra_info("peername") or [""])[0])
        self._inner.connection_made(transport)
        if self._heads.add(self._address, self):
            self._limit_head()
        else:
            self.end()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_head()
        self._heads.remove(self._address, self)
        self._inner.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self._in_head:
            self.received += len(data)
        elif not self._is_allowed(data):
            self.end()
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

    def _limit_head(self) -> None:
        self._stop_timer()
        self._timer = asyncio.get_running_loop().call_later(HEAD_SECONDS, self.end)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end_head(self) -> None:
        self._stop_timer()
        if self._size:
            self._unfinished[self._address] -= 1
            if not self._unfinished[self._address]:
                del self._unfinished[self._address]
        self._size, self._tail = 0, b""


STALLED_SECONDS = 60.0


class ClientConnection:
    """The agent's connection for one request. disconnected: whether the agent disconnected; sent: whether the provider may charge
    for the request, because it may have received the request and has not refused it; stalled_seconds: for how long the agent made
    the answer wait, because it did not read; arrived: when the request arrived, in seconds since the epoch; on_leave: called when
    the agent disconnects."""

    def __init__(self, request: web.Request) -> None:
        self.request = request
        self.arrived = time.time()
        self.on_leave: Callable[[], None] | None = None
        self.disconnected = False
        self.sent = False
        self.stalled_seconds = 0.0

    def leave(self) -> None:
        """Note that the agent has disconnected."""
        if not self.disconnected and self.on_leave is not None:
            self.on_leave()
        self.disconnected = True

    async def start(self, response: web.StreamResponse) -> None:
        """Send the answer's status and headers."""
        if self.disconnected:
            return
        try:
            await response.prepare(self.request)
        except ConnectionError:
            self.leave()

    async def write(self, response: web.StreamResponse, data: bytes) -> None:
        """Send a piece of the answer's body."""
        if not self.disconnected and data:
            await self._sent(response.write(data))

    async def send(self, response: web.StreamResponse) -> None:
        """Send an answer whose body is complete."""
        await self.start(response)
        if not self.disconnected:
            await self._sent(response.write_eof())

    async def _sent(self, writing: Awaitable[None]) -> None:
        """Await a write. If the agent does not read for a minute, abort the connection."""
        try:
            with stopwatch(self._add_stalled):
                async with asyncio.timeout(STALLED_SECONDS):
                    await writing
        except (ConnectionError, TimeoutError):
            self.abort()

    async def end(self, response: web.StreamResponse) -> None:
        """Send the end of the answer."""
        if not self.disconnected:
            end(self.request, response)
            await self._sent(response.write_eof())

    def _add_stalled(self, seconds: float) -> None:
        self.stalled_seconds += seconds

    def abort(self) -> None:
        """Break the connection, so that the agent does not mistake a cut-off answer for a complete one."""
        self.leave()
        if self.request.transport is not None:
            self.request.transport.abort()
