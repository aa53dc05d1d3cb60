"""The adaptive concurrency limit (AIMD) of requests to the API server: an overloaded server gets fewer requests.

As in TCP, the limit of requests in flight is halved when the server rejects a request or does not answer, and grows by one
after as many successful answers as the limit. A rejected request is retried after Retry-After; if it was the only one in flight,
all requests wait for that time. The number of requests per second is not limited: the server's answers set the rate.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from multistep.errors import Unavailable

MOST_IN_FLIGHT: Final = 64
PAUSE_SECONDS: Final = 1.0  # if the response has no Retry-After
MAX_PAUSE_SECONDS: Final = 60.0
JITTER: Final = 0.25
OVERLOADED = frozenset({0, 429, 502, 503, 504})  # 0: no answer. Not 500: often the failure of a webhook, which concerns one object


class Gate:
    """Limits concurrent requests. most_in_flight: the highest limit. waited: called with the seconds each request was queued."""

    def __init__(self, most_in_flight: int = MOST_IN_FLIGHT, *, waited: Callable[[float], None] = lambda _: None) -> None:
        self._most = most_in_flight
        self._waited = waited
        self._allowed = float(most_in_flight)
        self._in_flight = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._halved_at = self._closed_until = 0.0  # times of the event loop
        self._opening: asyncio.TimerHandle | None = None

    @property
    def allowed(self) -> int:
        """The current limit of requests in flight."""
        return int(self._allowed)

    @asynccontextmanager
    async def passing(self) -> AsyncIterator[None]:
        """Wait for a slot and hold it during a request, from sending to the whole answer. The outcome adjusts the limit."""
        await self._enter()
        started = _now()
        try:
            yield
        except Unavailable as error:
            if error.status in OVERLOADED:
                self.slow_down(started, error.retry_after)
            raise
        else:
            self._allowed = min(float(self._most), self._allowed + 1.0 / self._allowed)
        finally:
            self._in_flight -= 1
            self._give_slots()

    async def opened(self) -> None:
        """Wait while a Retry-After blocks all requests, but take no slot. For exec sessions, which take long and have another
        limit."""
        left = max(0.0, self._closed_until - _now())
        self._waited(left)
        await asyncio.sleep(left)

    def slow_down(self, started: float, retry_after: float | None = None) -> None:
        """Lower the limit after a rejection. started: when the request was sent; rejections of concurrent requests count once."""
        now = _now()
        if started < self._halved_at:
            return
        self._halved_at = now
        if self._allowed > 1.0:
            self._allowed = max(1.0, self._allowed / 2.0)
            return
        pause = min(PAUSE_SECONDS if retry_after is None else retry_after, MAX_PAUSE_SECONDS)
        self._closed_until = max(self._closed_until, now + pause * random.uniform(1.0, 1.0 + JITTER))

    async def _enter(self) -> None:
        queued_at = _now()
        slot = asyncio.get_running_loop().create_future()
        self._waiting.append(slot)
        self._give_slots()
        try:
            await slot
        except asyncio.CancelledError:
            if slot.done() and not slot.cancelled():  # the cancelled request has a slot that it will not use
                self._in_flight -= 1
                self._give_slots()
            raise
        finally:
            self._waited(_now() - queued_at)

    def _give_slots(self) -> None:
        """Give free slots to the requests queued longest, unless a Retry-After blocks all requests."""
        while self._waiting and self._in_flight < self.allowed and self._is_open():
            slot = self._waiting.popleft()
            if not slot.done():
                slot.set_result(None)
                self._in_flight += 1

    def _is_open(self) -> bool:
        left = self._closed_until - _now()
        if left > 0 and self._opening is None:
            self._opening = asyncio.get_running_loop().call_later(left, self._open)
        return left <= 0

    def _open(self) -> None:
        self._opening = None
        self._give_slots()


def _now() -> float:
    return asyncio.get_running_loop().time()
