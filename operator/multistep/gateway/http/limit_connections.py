"""Limits the memory for connections, and for requests whose head (request line and headers) has not arrived completely. An agent
can open many of both."""

from __future__ import annotations

import asyncio
import resource
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Final, cast

from aiohttp import web

MAX_HEAD_BYTES: Final = 32 << 10
"""Maximum bytes of a request's head that arrives in several pieces."""
MAX_UNFINISHED: Final = 256
"""Maximum number of unfinished heads from one address."""
MAX_CONNECTIONS: Final = 2048
"""Maximum number of connections from one address; a further one replaces the oldest idle one. A connection without a request takes
about 6 KiB and a file descriptor."""
MAX_TOTAL: Final = 16_384
"""Maximum number of connections of a port. ``listen`` lowers it if the process may open fewer than four times as many files."""
HEAD_SECONDS: Final = 30.0
"""Maximum seconds until a connection has sent the head of a request."""
_RESERVED_FILES: Final = 256  # reserved for the ledger and other files that are not connections
_CHUNK_SIZES: Final = 1024  # a chunked body may have this many bytes of chunk sizes, plus an eighth of its content
_END: Final = b"\r\n\r\n"


class ConnectionLimits:
    """Counts the connections of a port and the unfinished heads, by client address."""

    def __init__(self, make: Callable[[], asyncio.Protocol], most: int = MAX_TOTAL) -> None:
        """Allow at most ``most`` connections. ``make`` returns aiohttp's protocol for a new connection."""
        self.unfinished = Counter[str]()
        self._make = make
        self._most = most
        self._connections: dict[str, dict[_Connection, None]] = {}  # the oldest connection of an address is first
        self._total = 0

    def connection(self) -> asyncio.Protocol:
        """Return the protocol for a new connection."""
        return _Connection(self._make(), self)

    def add(self, address: str, connection: _Connection) -> bool:
        """Count a new connection, and return whether it may stay. At a limit, it may take the place of the oldest idle connection:
        of its own address if that has too many, so that one process of a pod cannot keep the others from connecting, or else of the
        address with the most."""
        own = self._connections.setdefault(address, {})
        own[connection] = None
        self._total += 1
        if len(own) <= MAX_CONNECTIONS and self._total <= self._most:
            return True
        crowd = own if len(own) > MAX_CONNECTIONS else max(self._connections.values(), key=len)
        crowded = len(own) > MAX_CONNECTIONS or len(crowd) > len(own)
        idle = next((each for each in crowd if each.idle and each is not connection), None) if crowded else None
        if idle is not None:
            idle.end()
        return idle is not None

    def remove(self, address: str, connection: _Connection) -> None:
        """Stop counting a connection. The call is idempotent."""
        own = self._connections.get(address, {})
        if connection in own:
            del own[connection]
            self._total -= 1
        if not own:
            self._connections.pop(address, None)


async def listen(stack: AsyncExitStack, runner: web.AppRunner, host: str, port: int) -> int:
    """Start a server with these limits, and return its port. This raises the process's limit of open files to the most that the
    container allows, because many runtimes allow only 1024 at first, which one agent's connections could use up."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    runner.app.on_response_prepare.append(_expect_next_head)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    assert runner.server is not None
    limits = ConnectionLimits(runner.server, max(1, min(MAX_TOTAL, (most - _RESERVED_FILES) // 4)))
    server = await asyncio.get_running_loop().create_server(limits.connection, host, port, backlog=128)
    stack.callback(server.close)
    return int(server.sockets[0].getsockname()[1])


async def _expect_next_head(request: web.Request, response: web.StreamResponse) -> None:
    """Prepare the connection for its next request, unless the answer is a stream. aiohttp calls this method before it sends any
    answer, even one without a handler. A handler that sends a stream calls ``expect_next_head`` itself, or closes
    the connection."""
    if isinstance(response, web.Response):
        expect_next_head(request, response)


def expect_next_head(request: web.Request, response: web.StreamResponse) -> None:
    """Count the bytes that arrive next as the head of the connection's next request. Call this before the answer's end is sent,
    because the client may then send its next request at once. If less or more than the whole request has arrived, the connection is
    closed after the answer, because the bytes of the next head could not all be counted."""
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
    """Passes all calls to aiohttp's protocol. Aborts the connection if the head is too long, or if the client's address has too
    many unfinished heads or connections."""

    def __init__(self, inner: asyncio.Protocol, limits: ConnectionLimits) -> None:
        self.received = 0
        """Number of bytes that arrived after the end of the last head."""
        self._inner = inner
        self._limits = limits
        self._unfinished = limits.unfinished
        self._timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None
        self._address = ""
        self._in_head = True
        self._size = 0  # bytes of the unfinished head
        self._tail = b""  # the last bytes of the head, in which its end marker may start

    @property
    def idle(self) -> bool:
        """Whether no request is being answered."""
        return self._in_head

    def expect_head(self) -> None:
        self._in_head = True
        self._limit_head()

    def end(self) -> None:
        """Abort the connection, and stop counting it at once, because many new connections may arrive before ``connection_lost`` is
        called."""
        assert self._transport is not None
        self._limits.remove(self._address, self)
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._address = str((transport.get_extra_info("peername") or [""])[0])
        self._inner.connection_made(transport)
        if self._limits.add(self._address, self):
            self._limit_head()
        else:
            self.end()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_head()
        self._limits.remove(self._address, self)
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
        end = text.find(_END)
        if end >= 0:
            self._end_head()
            self._in_head = False
            self.received = len(text) - end - len(_END)
            return True
        if more and not self._size:
            self._unfinished[self._address] += 1
        self._size += len(more)
        self._tail = text[-len(_END) + 1 :]
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
        self._size = 0
        self._tail = b""
