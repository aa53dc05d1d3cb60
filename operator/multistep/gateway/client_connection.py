"""An agent's connection to the gateway. Writes do nothing once the agent has disconnected."""

from __future__ import annotations

import asyncio

from aiohttp import web

from multistep.gateway import heads

_STALLED_SECONDS = 60.0


class ClientConnection:
    """The agent's connection for one request. disconnected: whether the agent disconnected; sent: whether the provider may charge
    for the request: it may have received the request, and has not refused it."""

    def __init__(self, request: web.Request) -> None:
        self.request = request
        self.disconnected = False
        self.sent = False

    async def start(self, response: web.StreamResponse) -> None:
        """Send the answer's status and headers."""
        if self.disconnected:
            return
        try:
            await response.prepare(self.request)
        except ConnectionError:
            self.disconnected = True

    async def write(self, response: web.StreamResponse, data: bytes) -> None:
        """Send a piece of the answer's body. An agent that does not read for a minute counts as gone."""
        if self.disconnected or not data:
            return
        try:
            async with asyncio.timeout(_STALLED_SECONDS):
                await response.write(data)
        except (ConnectionError, TimeoutError):
            self.disconnected = True
            self.abort()

    async def end(self, response: web.StreamResponse) -> None:
        """Send the end of the answer."""
        if self.disconnected:
            return
        heads.end(self.request, response)
        try:
            await response.write_eof()
        except ConnectionError:
            self.disconnected = True

    def abort(self) -> None:
        """Break the connection, so that the agent does not mistake a cut-off answer for a complete one."""
        if self.request.transport is not None:
            self.request.transport.abort()
