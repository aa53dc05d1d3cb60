"""The agent's connection, which sends the answer and notices when the agent disconnects."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from aiohttp import web

from multistep.gateway.http.limit_connections import expect_next_head
from multistep.gateway.pace import stopwatch

STALLED_SECONDS = 60.0
"""If the agent does not read for longer, the gateway aborts its connection."""
MOST_STALLED_SECONDS = 300.0
"""Maximum seconds of all these waits of one answer. An agent that reads a little each minute could otherwise hold its slot at the
provider, and a pause in which a trainer waits for requests in flight, until its step ends."""


class ClientConnection:
    """The agent's connection for one request."""

    def __init__(self, request: web.Request, *, relays: bool = True) -> None:
        """Create the connection. relays: whether the agent gets the answer; the operator waits for its end only."""
        self.request = request
        self._relays = relays
        self.arrived = time.time()
        """When the request arrived, in seconds since the epoch."""
        self.on_leave: Callable[[], None] | None = None
        """Function to call when the agent disconnects."""
        self.disconnected = False
        self.left_at: float | None = None
        """When the agent disconnected, in seconds since the epoch; None if it has not."""
        self.sent = False
        """Whether the provider may charge for the request, because it may have received the request and has not refused it."""
        self.ends_on_leave = False
        """Whether the gateway closes the provider's answer when the agent disconnects, instead of reading it for its usage."""
        self.stalled_seconds = 0.0
        """Time for which the gateway could not send the answer, because the agent did not read."""

    def leave(self) -> None:
        """Record that the agent has disconnected."""
        if not self.disconnected:
            self.left_at = time.time()
            if self.on_leave is not None:
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
        """Await a write. If the agent does not read for STALLED_SECONDS, or for MOST_STALLED_SECONDS in all writes, abort the
        connection."""
        try:
            with stopwatch(self._add_stalled):
                async with asyncio.timeout(min(STALLED_SECONDS, MOST_STALLED_SECONDS - self.stalled_seconds)):
                    await writing
        except (ConnectionError, TimeoutError):
            self.abort()

    async def end(self, response: web.StreamResponse) -> None:
        """Send the end of the answer."""
        if not self.disconnected:
            expect_next_head(self.request, response)
            await self._sent(response.write_eof())

    def _add_stalled(self, seconds: float) -> None:
        self.stalled_seconds += seconds

    def abort(self) -> None:
        """Abort the connection, so that the agent does not mistake a cut-off answer for a complete one."""
        self.leave()
        if self._relays and self.request.transport is not None:
            self.request.transport.abort()
