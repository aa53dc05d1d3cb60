"""Limits how many requests a provider gets at once. Each pair of credential and model has a queue, called a lane. The lane's window
is the number of requests that may be in flight. A refusal makes the window smaller, and a success makes it larger."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from pydantic import BaseModel, ConfigDict, Field

CALM_SECONDS: Final = 30.0
"""After this time without a refusal, each success widens the window by 1. Until then, a success widens the window by
``_CAUTIOUS_STEP / window``."""
# After a recent refusal, a success adds this number divided by the window to the window.
_CAUTIOUS_STEP: Final = 0.25
_MAX_IDLE_LANES: Final = 1024
_FEW: Final = 16  # a trial that has at most a 16th of the window may take the last free slot
_LONGEST_PAUSE: Final = 60.0  # in seconds. A longer Retry-After is cut to this, because other users of the key may have caused it


class HoldExpired(Exception):
    """The request waited too long for its turn."""

    def __init__(self, *, over_share: bool = False, too_long: bool = False) -> None:
        super().__init__()
        self.over_share = over_share
        """Whether a slot was free, but the request's trial had too many slots."""
        self.too_long = too_long
        """Whether the provider's pause would be too long even if the trial's other requests had not made this one wait."""


class _Line(deque[asyncio.Future[None]]):
    """The waiting requests of one trial."""

    over_share = False
    """Whether a slot was free and refusals did not narrow the window, but the trial had too many slots. Reset when the trial gets a
    slot."""


class Lane:
    """The queue of one credential and model."""

    def __init__(self, size: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Start with the window at its maximum, ``size``. ``clock`` returns monotonic seconds."""
        self.sent = 0
        """Number of requests that the lane has sent. The n-th request has the number n."""
        self.answered = 0
        """Highest number of a request that the provider answered completely."""
        self.reached = 0
        """Highest number of a request that the provider answered completely, or with an error inside an answer of status 200."""
        self.refuses_stream_options = False
        """Whether the provider rejected the field stream_options."""
        self._size = size
        self._clock = clock
        self._window = float(size)
        self._in_flight = Counter[str]()  # the number of requests in flight, by trial
        self._paused_until = -math.inf
        self._refused_at = -math.inf
        self._waiting: OrderedDict[str, OrderedDict[str, _Line]] = OrderedDict()  # queued requests by sweep and trial
        self._timer: asyncio.TimerHandle | None = None

    @property
    def window(self) -> int:
        """The number of requests that may be in flight."""
        return max(1, int(self._window))

    @property
    def narrowed(self) -> bool:
        """Whether refusals keep the window below its maximum."""
        return self._window < self._size

    @property
    def in_flight(self) -> int:
        """The number of requests in flight."""
        return self._in_flight.total()

    @property
    def waiting(self) -> int:
        """The number of requests that wait."""
        return sum(len(line) for lines in self._waiting.values() for line in lines.values())

    @property
    def idle(self) -> bool:
        """Whether the lane can be deleted, because it has no request and the full window, like a new lane."""
        return not self._in_flight and not self._waiting and self._window >= self._size

    async def enter(self, sweep: str, trial: str, seconds: float, *, retry: bool = False) -> None:
        """Acquire a slot, which ``leave`` frees. With ``retry``, wait before all other requests of the sweep.

        Raises HoldExpired after ``seconds``.
        """
        if not self._waiting and self._has_room() and self._in_flight[trial] <= self._share():
            self._in_flight[trial] += 1
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        lines = self._waiting.setdefault(sweep, OrderedDict())
        line = lines.setdefault(trial, _Line())
        (line.appendleft if retry else line.append)(waiter)
        if retry:
            lines.move_to_end(trial, last=False)
        self._admit()
        try:
            async with asyncio.timeout(seconds):
                await waiter
        except BaseException as error:
            self._withdraw(sweep, trial, waiter)
            if isinstance(error, TimeoutError):
                raise HoldExpired(over_share=line.over_share) from error
            raise

    def leave(self, trial: str) -> None:
        """Free a slot of the trial after an answer, or after a refusal (429, 503, 529, no connection) of a request that must not be
        sent again. This may widen the window."""
        self._free(trial)
        if self.in_flight + 1 >= self.window or self._waiting:  # widen the window only if it is too small
            calm = self._clock() - self._refused_at > CALM_SECONDS
            self._window = min(self._size, self._window + (1.0 if calm else _CAUTIOUS_STEP / self._window))
        self._admit()

    def leave_refused(self, trial: str, pause: float) -> None:
        """Free a slot of the trial after a refusal, and narrow the window to the requests in flight. If there are none, the lane
        sends no request for ``pause`` seconds, or for _LONGEST_PAUSE if that is shorter."""
        self._free(trial)
        self._refused_at = self._clock()
        self._window = max(1.0, min(self._window, float(self.in_flight)))
        if not self._in_flight:
            self._paused_until = self._clock() + min(pause, _LONGEST_PAUSE)
        self._admit()

    def give_back(self, trial: str) -> None:
        """Free a slot of the trial with which no request was sent."""
        self._free(trial)
        self._admit()

    def _has_room(self) -> bool:
        return self.in_flight < self.window and self._clock() >= self._paused_until

    def _share(self) -> int:
        """Return how many slots a trial may have and still get another one."""
        return max(self.window - self.in_flight, self.window // _FEW)

    def _free(self, trial: str) -> None:
        self._in_flight[trial] -= 1
        self._in_flight = +self._in_flight  # drops the trials that have no slot

    def _admit(self) -> None:
        while self._has_room() and (turn := self._next_turn()):
            sweep, trial = turn
            lines = self._waiting.pop(sweep)
            line = lines.pop(trial)
            waiter = line.popleft()
            line.over_share = False
            if line:
                lines[trial] = line  # moves the trial to the end, so that other trials of the sweep are next
            if lines:
                self._waiting[sweep] = lines  # moves the sweep to the end, so that other sweeps are next
            if not waiter.done():
                self._in_flight[trial] += 1
                waiter.set_result(None)
        self._wake_after_pause()

    def _next_turn(self) -> tuple[str, str] | None:
        """Return the sweep and the trial whose request is next. Trials that have more slots than their share are skipped."""
        share = self._share()
        for sweep, lines in self._waiting.items():
            for trial, line in lines.items():
                if self._in_flight[trial] <= share:
                    return sweep, trial
                line.over_share = line.over_share or not self.narrowed
        return None

    def _wake_after_pause(self) -> None:
        left = self._paused_until - self._clock()
        if self._waiting and left > 0 and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(left + 0.001, self._resume)

    def _resume(self) -> None:
        self._timer = None
        self._admit()

    def _withdraw(self, sweep: str, trial: str, waiter: asyncio.Future[None]) -> None:
        if waiter.done() and not waiter.cancelled():
            self.give_back(trial)  # the request got the slot just when the wait timed out or was cancelled
            return
        lines = self._waiting.get(sweep, OrderedDict())
        line = lines.get(trial, _Line())
        if waiter in line:
            line.remove(waiter)
            if not line:
                del lines[trial]
            if not lines:
                del self._waiting[sweep]


class Lanes:
    """All lanes, by account and model. Requests that use no tokens have lanes of their own, because providers limit them
    separately."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._lanes: dict[tuple[Hashable, str, bool], Lane] = {}

    def get(self, account: Hashable, model: str, *, counted: bool = True) -> Lane:
        """Return the lane of an account and model. ``counted`` tells whether the lane's requests use tokens."""
        key = account, model, counted
        if key not in self._lanes:
            if len(self._lanes) >= _MAX_IDLE_LANES:  # limits the memory, because agents can send any model name
                self._lanes = {key: lane for key, lane in self._lanes.items() if not lane.idle}
            self._lanes[key] = Lane(self._size)
        return self._lanes[key]

    def __iter__(self) -> Iterator[Lane]:
        return iter(self._lanes.values())


@contextmanager
def stopwatch(add: Callable[[float], None]) -> Iterator[None]:
    """Call ``add`` with the seconds that the context took, even if the context raises an error."""
    start = time.monotonic()
    try:
        yield
    finally:
        add(time.monotonic() - start)


_MAX_MODELS: Final = 1024


class ModelLoad(BaseModel):
    """Numbers of a provider's answers and refusals for one model."""

    model_config = ConfigDict(frozen=True)

    answered: int = Field(default=0, ge=0)
    refused: int = Field(default=0, ge=0)
    """Number of answers with status 429, 503 or 529. ``answered`` counts all others."""


class AnswerCounts:
    """The provider's answers and refusals since the gateway's start, by requested model. Above _MAX_MODELS, the least recently
    requested model is dropped, because agents can request any name."""

    def __init__(self) -> None:
        self._totals: dict[str, ModelLoad] = {}

    @property
    def totals(self) -> Mapping[str, ModelLoad]:
        """The numbers of answers and refusals, by model."""
        return self._totals

    def count(self, model: str, *, refused: bool) -> None:
        """Count an answer of the provider."""
        before = self._totals.pop(model, ModelLoad())
        self._totals[model] = ModelLoad(answered=before.answered + (not refused), refused=before.refused + refused)
        if len(self._totals) > _MAX_MODELS:
            del self._totals[next(iter(self._totals))]
