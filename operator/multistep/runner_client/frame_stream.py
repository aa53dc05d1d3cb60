"""Frames over one exec stream. Every read and write has a timeout. If the stream ends early, the error names the cause."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Literal, Protocol

from multistep.engine.lifecycle.killed_sessions import ended_from_inside
from multistep.errors import ExecKilled, StreamLost
from multistep.runner_client.frames import Frame, FrameReader

CLOSE_TIMEOUT_SECONDS = 5.0

Moved = Callable[[Literal["up", "down"], int], object]  # called with the direction and the number of bytes; "up": to the pod


class Stream(Protocol):
    """The exec stream of a session (multistep.kube.exec implements it).

    Each method raises StreamLost when the stream is broken; ``receive`` returns b"" at an orderly end.
    """

    async def send(self, data: bytes) -> None: ...
    async def send_eof(self) -> None: ...
    async def receive(self) -> bytes: ...
    async def close(self) -> None: ...


class FrameStream:
    """Sends bytes to a runner and receives its frames. timeout_seconds: how long the runner may be silent."""

    def __init__(self, stream: Stream, *, timeout_seconds: float, moved: Moved) -> None:
        self._stream = stream
        self.timeout_seconds = timeout_seconds
        self._moved = moved
        self._frames = FrameReader()
        self._sending: asyncio.Timeout | None = None  # timeout of the send in progress

    async def send(self, data: bytes) -> None:
        """Send bytes. Raises StreamLost, also at the timeout; the timeout restarts whenever a concurrent ``receive`` gets data."""
        try:
            async with asyncio.timeout(self.timeout_seconds) as self._sending:
                await self._stream.send(data)
        except TimeoutError:
            raise StreamLost(f"the runner received nothing for {self.timeout_seconds:g} s") from None
        finally:
            self._sending = None
        self._moved("up", len(data))

    async def receive(self, extra_seconds: float = 0.0) -> Frame:
        """Return the next frame. extra_seconds: added to the usual timeout. Raises StreamLost if the stream ends or at the timeout,
        and RunnerError if the frame is invalid."""
        limit = self.timeout_seconds + extra_seconds
        try:
            async with asyncio.timeout(limit):
                return await self._next_frame()
        except TimeoutError:
            raise StreamLost(f"the runner was silent for {limit:g} s") from None

    async def _next_frame(self) -> Frame:
        while (frame := self._frames.next()) is None:
            data = await self._stream.receive()
            if not data:
                raise self._ended_early()
            self._moved("down", len(data))
            self._frames.feed(data)
            if self._sending is not None and not self._sending.expired():
                self._sending.reschedule(asyncio.get_running_loop().time() + self.timeout_seconds)
        return frame

    def _ended_early(self) -> StreamLost:
        """Return the error of a stream that ended early; ExecKilled if the exit status shows a kill from inside the container."""
        message = f"the exec stream ended early{self._last_words()}"
        status = getattr(self._stream, "status", None)
        killed = status is not None and ended_from_inside(status.code, status.message)
        return ExecKilled(message) if killed else StreamLost(message)

    def _last_words(self) -> str:
        """Return the stderr of the relay (``runner call``) as part of a message; "" if the stream has none."""
        words = str(getattr(self._stream, "exit_details", "") or "").strip()
        return f": {words[:500]}" if words else ""

    async def close(self) -> None:
        """Close the stream. Does not raise for a broken stream."""
        with suppress(StreamLost, TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_SECONDS):
                await self._stream.send_eof()
        with suppress(StreamLost, TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_SECONDS):
                await self._stream.close()
