"""One gate for all requests to the API server, so that a server that has too much to do gets less, from everybody at once.

As TCP does it: the number of requests in flight is halved when the server refuses or stays away, and grows by one with
each round of answers. A refused request comes again after Retry-After; when even a single one in flight is refused, all
wait for as long. There is no ceiling for requests per second: the answers set the pace, and a server that wants less says so.
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
PAUSE_SECONDS: Final = 1.0  # where the server does not say how long
MAX_PAUSE_SECONDS: Final = 60.0
JITTER: Final = 0.25
OVERLOADED = frozenset({0, 429, 502, 503, 504})  # 0: no answer. Not 500: a webhook's fault, say, which is about one object


class Gate:
    """most_in_flight: requests that wait for their answers at once. waited: told for how long each request was held up."""

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
        """Requests that may be in flight now."""
        return int(self._allowed)

    @asynccontextmanager
    async def passing(self) -> AsyncIterator[None]:
        """Around a request, from its sending to its whole answer; learns from how it ends."""
        await self._enter()
        began = _now()
        try:
            yield
        except Unavailable as error:
            if error.status in OVERLOADED:
                self.slow_down(began, error.retry_after)
            raise
        else:
            self._allowed = min(float(self._most), self._allowed + 1.0 / self._allowed)
        finally:
            self._in_flight -= 1
            self._let_in()

    async def opened(self) -> None:
        """For what is long in flight and bounded elsewhere: wait only while all are asked to."""
        left = max(0.0, self._closed_until - _now())
        self._waited(left)
        await asyncio.sleep(left)

    def slow_down(self, began: float, retry_after: float | None = None) -> None:
        """A request of that time was refused. Many that were in flight together are one sign, not many."""
        now = _now()
        if began < self._halved_at:
            return
        self._halved_at = now
        if self._allowed > 1.0:
            self._allowed = max(1.0, self._allowed / 2.0)
            return
        pause = min(PAUSE_SECONDS if retry_after is None else retry_after, MAX_PAUSE_SECONDS)
        self._closed_until = max(self._closed_until, now + pause * random.uniform(1.0, 1.0 + JITTER))

    async def _enter(self) -> None:
        asked = _now()
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._let_in()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it was let in, and will not go
                self._in_flight -= 1
                self._let_in()
            raise
        finally:
            self._waited(_now() - asked)

    def _let_in(self) -> None:
        """Let in who waits longest, while there is room and the gate is open."""
        while self._waiting and self._in_flight < self.allowed and self._is_open():
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                self._in_flight += 1

    def _is_open(self) -> bool:
        left = self._closed_until - _now()
        if left > 0 and self._opening is None:
            self._opening = asyncio.get_running_loop().call_later(left, self._open)
        return left <= 0

    def _open(self) -> None:
        self._opening = None
        self._let_in()


def _now() -> float:
    return asyncio.get_running_loop().time()
