"""The adaptive concurrency limit (AIMD) of requests to the API server, so that an overloaded server gets fewer requests.

As in TCP, the limit of requests in flight is halved when the server rejects a request or does not answer. The limit grows by one
after N successful answers, where N is the current limit. A rejected request is retried after Retry-After. If the limit is already
1, all requests wait for the time in Retry-After instead. The number of requests per second is not limited, because it follows from
the server's answers.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from multistep.adaptive_limit import AdaptiveLimit
from multistep.errors import Unavailable

MAX_IN_FLIGHT: Final = 64
PAUSE_SECONDS: Final = 1.0  # pause after an overloaded response without Retry-After
MAX_PAUSE_SECONDS: Final = 60.0
JITTER: Final = 0.25
# Statuses of an overloaded server. 0 is no answer. 500 is left out, because it is often a webhook's failure that affects one
# object.
OVERLOADED = frozenset({0, 429, 502, 503, 504})


class RequestLimit:
    """Limits how many requests are in flight."""

    def __init__(self, max_in_flight: int = MAX_IN_FLIGHT, *, waited: Callable[[float], None] = lambda _: None) -> None:
        """Start without requests. The adaptive limit is at most ``max_in_flight``. ``waited`` is called for each request with the
        seconds for which it was queued."""
        self._waited = waited
        self._limit = AdaptiveLimit(max_in_flight)
        self._in_flight = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._halved_at = 0.0  # when the limit was last halved
        self._closed_until = 0.0  # the time until which requests are blocked
        self._opening: asyncio.TimerHandle | None = None

    @property
    def allowed(self) -> int:
        """The current limit of requests in flight."""
        return self._limit.allowed

    @asynccontextmanager
    async def passing(self) -> AsyncIterator[None]:
        """Return a context that has a slot for one request, and in which the caller reads the whole answer. Success raises the
        limit slowly. An answer of an overloaded server halves it."""
        await self._enter()
        started = _now()
        try:
            yield
        except Unavailable as error:
            if error.status in OVERLOADED:
                self.slow_down(started, error.retry_after)
            raise
        else:
            self._limit.succeeded()
        finally:
            self._in_flight -= 1
            self._give_slots()

    async def opened(self) -> None:
        """Wait until no Retry-After blocks requests. Exec sessions call this instead of acquiring a slot, because they have a limit
        of their own."""
        left = max(0.0, self._closed_until - _now())
        self._waited(left)
        await asyncio.sleep(left)

    def slow_down(self, started: float, retry_after: float | None = None) -> None:
        """Lower the limit after a rejected request, unless it was already lowered since the request was sent at ``started``."""
        now = _now()
        if started < self._halved_at:
            return
        self._halved_at = now
        if self._limit.refused():
            return
        pause = min(PAUSE_SECONDS if retry_after is None else retry_after, MAX_PAUSE_SECONDS)
        self._closed_until = max(self._closed_until, now + pause * random.uniform(1.0, 1.0 + JITTER))

    async def _enter(self) -> None:
        if not self._waiting and self._in_flight < self.allowed and self._is_open():
            self._in_flight += 1
            self._waited(0.0)
            return
        queued_at = _now()
        slot = asyncio.get_running_loop().create_future()
        self._waiting.append(slot)
        self._give_slots()
        try:
            await slot
        except asyncio.CancelledError:
            if slot.done() and not slot.cancelled():  # the request got a slot before it was cancelled, so free the slot
                self._in_flight -= 1
                self._give_slots()
            raise
        finally:
            self._waited(_now() - queued_at)

    def _give_slots(self) -> None:
        """Give free slots to the requests that were queued for longest, unless a Retry-After blocks all requests."""
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
