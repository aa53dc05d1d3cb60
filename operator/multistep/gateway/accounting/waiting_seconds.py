"""How long each step waited for the provider. A step is stalled while the provider refuses its requests, and silent while the
provider sends it no part of an answer."""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

from multistep.gateway.accounting.request_ledger import RequestLedger
from multistep.gateway.keys.tokens import StepKey

_MAX_STEPS: Final = 20_000
_SHORTEST_SECONDS: Final = 1.0  # shorter silences are usual, and are not kept


class _Kept(NamedTuple):
    """A finished silence."""

    seconds: float
    until: float
    """When the silence ended, in seconds since the epoch."""


class Silence:
    """The silences of all steps, in memory only. After a restart of the gateway, the recorded downtime takes their place."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Create a record without silences. ``clock`` returns monotonic seconds."""
        self._clock = clock
        self._kept: OrderedDict[StepKey, _Kept] = OrderedDict()
        self._since: dict[StepKey, float] = {}
        self._waiting = Counter[StepKey]()

    def seconds(self, step: StepKey) -> float:
        """Return how long the step has waited since the provider's last answer, in seconds."""
        running = self._clock() - self._since[step] if step in self._since else 0.0
        return (self._kept[step].seconds if step in self._kept else 0.0) + running

    def until(self, step: StepKey) -> float | None:
        """Return when the step's silence ended, in seconds since the epoch, or None if the step has no finished silence."""
        return self._kept[step].until if step in self._kept else None

    def start_wait(self, step: StepKey) -> None:
        """Record that a request of the step starts to wait for the provider."""
        self._waiting[step] += 1
        self._since.setdefault(step, self._clock())

    def end_wait(self, step: StepKey) -> None:
        """Record that the request no longer waits."""
        self._waiting[step] -= 1
        if self._waiting[step]:
            return
        del self._waiting[step]
        self._keep(step)

    def heard(self, step: StepKey) -> None:
        """Restart the step's silence at 0, because the provider sent a part of an answer."""
        self._kept.pop(step, None)
        if step in self._since:
            self._since[step] = self._clock()

    def stop(self, step: StepKey) -> None:
        """End the step's silence, because its agent has ended. A process that the agent left running may still have open requests.
        They do not extend the silence, but an answer to them removes it."""
        self._keep(step)

    def _keep(self, step: StepKey) -> None:
        """End the silence of a step that waits, and keep its length."""
        if step not in self._since:
            return
        seconds = self.seconds(step)
        del self._since[step]
        if seconds < _SHORTEST_SECONDS:
            return
        self._kept[step] = _Kept(seconds, time.time())
        self._kept.move_to_end(step)
        if len(self._kept) > _MAX_STEPS:
            self._kept.popitem(last=False)


class Stalls:
    """The times for which the provider stalled each step."""

    def __init__(self, ledger: RequestLedger, seconds: Mapping[str, float], clock: Callable[[], float] = time.monotonic) -> None:
        """Start with the stalled seconds that the ledger has, by StepKey as text. ``clock`` returns monotonic seconds."""
        self._ledger = ledger
        self._clock = clock
        self._seconds = dict(seconds)
        self._waiting: Counter[str] = Counter()
        self._since: dict[str, float] = {}

    def seconds(self, step: StepKey) -> float:
        """Return the seconds for which the step has been stalled so far."""
        key = str(step)
        running = self._clock() - self._since[key] if key in self._since else 0.0
        return self._seconds.get(key, 0.0) + running

    @asynccontextmanager
    async def waiting(self, step: StepKey) -> AsyncIterator[None]:
        """Return a context in which the step counts as stalled."""
        key = str(step)
        self._waiting[key] += 1
        self._since.setdefault(key, self._clock())
        try:
            yield
        finally:
            self._waiting[key] -= 1
            if not self._waiting[key]:
                self._seconds[key] = self.seconds(step)
                del self._waiting[key], self._since[key]
                await self._ledger.write_stall(step, self._seconds[key])

    def forget(self, ended: Callable[[StepKey], bool]) -> None:
        """Drop from memory the steps that have ended and do not wait. The ledger keeps their stalled seconds."""
        self._seconds = {
            key: seconds for key, seconds in self._seconds.items() if key in self._waiting or not ended(StepKey(*key.split("/")))
        }
