"""A lane per credential and model: at most ``window`` requests are in flight, and the sweeps that wait take turns.

The window shrinks to the number of other requests in flight when the provider refuses one, and grows again with successes.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

CALM_SECONDS: Final = 30.0
"""Without a refusal for so long, each success opens the window by one, otherwise by a part."""
_CAUTIOUS_STEP: Final = 0.25  # per window of successes, while refusals are recent
_MOST_IDLE_LANES: Final = 1024


class HoldExpired(Exception):
    """The request waited too long for its turn."""


class Lane:
    """The queue of one credential and model. size: most requests in flight."""

    def __init__(self, size: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._size = size
        self._clock = clock
        self._window = float(size)
        self._in_flight = 0
        self._paused_until = -math.inf
        self._refused_at = -math.inf
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def window(self) -> int:
        """Return how many requests may be in flight."""
        return max(1, int(self._window))

    @property
    def in_flight(self) -> int:
        """Return how many requests are in flight."""
        return self._in_flight

    @property
    def waiting(self) -> int:
        """Return how many requests wait."""
        return sum(map(len, self._waiting.values()))

    @property
    def idle(self) -> bool:
        """Return whether the lane can be forgotten: nobody is in it, and it has no memory of refusals."""
        return not self._in_flight and not self._waiting and self._window >= self._size

    async def enter(self, sweep: str, seconds: float, *, again: bool = False) -> None:
        """Wait for a place for at most ``seconds``; ``leave`` gives it back. again: ahead of the sweep's others.

        Raises HoldExpired.
        """
        if not self._waiting and self._has_room():
            self._in_flight += 1
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        line = self._waiting.setdefault(sweep, deque())
        (line.appendleft if again else line.append)(place)
        self._admit()
        try:
            async with asyncio.timeout(seconds):
                await place
        except BaseException as error:
            self._withdraw(sweep, place)
            if isinstance(error, TimeoutError):
                raise HoldExpired from error
            raise

    def leave(self) -> None:
        """Give the place back after an answer that was no refusal."""
        self._in_flight -= 1
        if self._in_flight + 1 >= self.window or self._waiting:  # an unused window proves nothing
            calm = self._clock() - self._refused_at > CALM_SECONDS
            self._window = min(self._size, self._window + (1.0 if calm else _CAUTIOUS_STEP / self._window))
        self._admit()

    def leave_refused(self, pause: float) -> None:
        """Give the place back after a refusal. If no other request is in flight, all wait for ``pause`` seconds."""
        self._in_flight -= 1
        self._refused_at = self._clock()
        self._window = max(1.0, min(self._window, float(self._in_flight)))
        if not self._in_flight:
            self._paused_until = self._clock() + pause
        self._admit()

    def _has_room(self) -> bool:
        return self._in_flight < self.window and self._clock() >= self._paused_until

    def _admit(self) -> None:
        while self._waiting and self._has_room():
            sweep, line = self._waiting.popitem(last=False)
            place = line.popleft()
            if line:
                self._waiting[sweep] = line  # at the end: the other sweeps are first
            if not place.done():
                self._in_flight += 1
                place.set_result(None)
        self._wake_after_pause()

    def _wake_after_pause(self) -> None:
        left = self._paused_until - self._clock()
        if self._waiting and left > 0 and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(left + 0.001, self._resume)

    def _resume(self) -> None:
        self._timer = None
        self._admit()

    def _withdraw(self, sweep: str, place: asyncio.Future[None]) -> None:
        if place.done() and not place.cancelled():
            self._in_flight -= 1  # admitted at the same moment
            self._admit()
        elif place in (line := self._waiting.get(sweep, deque())):
            line.remove(place)
            if not line:
                del self._waiting[sweep]


class Lanes:
    """All lanes."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._lanes: dict[tuple[str, str], Lane] = {}

    def of(self, credential: str, model: str) -> Lane:
        """Return the lane of a credential and model."""
        if (credential, model) not in self._lanes:
            if len(self._lanes) >= _MOST_IDLE_LANES:  # agents may invent names of models
                self._lanes = {key: lane for key, lane in self._lanes.items() if not lane.idle}
            self._lanes[credential, model] = Lane(self._size)
        return self._lanes[credential, model]

    def __iter__(self) -> Iterator[Lane]:
        return iter(self._lanes.values())


@contextmanager
def stopwatch(add: Callable[[float], None]) -> Iterator[None]:
    """Report the seconds that the context took, however it ends."""
    start = time.monotonic()
    try:
        yield
    finally:
        add(time.monotonic() - start)
