"""How long each step waited for the provider: refused (stalled), or without a part of an answer (silent)."""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

from multistep.gateway.accounting.request_ledger import RequestLedger
from multistep.gateway.keys.tokens import StepKey

_MAX_STEPS: Final = 20_000
_SHORTEST_SECONDS: Final = 1.0  # shorter silences are usual, and not kept


class _Kept(NamedTuple):
    """A silence whose clock has stopped."""

    seconds: float
    until: float
    """When it stopped, in seconds since the epoch."""


class Silence:
    """The silences of all steps, in memory only: after a restart of the gateway its downtime explains what an agent did."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Create a record without silences. clock: monotonic, in seconds."""
        self._clock = clock
        self._kept: OrderedDict[StepKey, _Kept] = OrderedDict()
        self._since: dict[StepKey, float] = {}
        self._waiting = Counter[StepKey]()

    def seconds(self, step: StepKey) -> float:
        """Return how long the step has waited since the provider's last answer, in seconds."""
        running = self._clock() - self._since[step] if step in self._since else 0.0
        return (self._kept[step].seconds if step in self._kept else 0.0) + running

    def until(self, step: StepKey) -> float | None:
        """Return when the clock of the step's silence stopped, in seconds since the epoch; None if there is no silence."""
        return self._kept[step].until if step in self._kept else None

    def start_wait(self, step: StepKey) -> None:
        """Count a request of the step that waits for the provider."""
        self._waiting[step] += 1
        self._since.setdefault(step, self._clock())

    def end_wait(self, step: StepKey) -> None:
        """Count the request no longer."""
        self._waiting[step] -= 1
        if self._waiting[step]:
            return
        del self._waiting[step]
        self._keep(step)

    def heard(self, step: StepKey) -> None:
        """Start the step's silence again at 0: the provider sent a part of an answer."""
        self._kept.pop(step, None)
        if step in self._since:
            self._since[step] = self._clock()

    def stop(self, step: StepKey) -> None:
        """Stop the clock of the step's silence, because its agent has ended. A process that the agent left running may still have
        open requests: they count no longer, but an answer to them ends the silence."""
        self._keep(step)

    def _keep(self, step: StepKey) -> None:
        """Stop the clock of a step that waits, and keep the length of its silence."""
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
    """The stalls of all steps."""

    def __init__(self, ledger: RequestLedger, seconds: Mapping[str, float], clock: Callable[[], float] = time.monotonic) -> None:
        """Start with the stalls in the ledger, by StepKey as text. clock: monotonic, in seconds."""
        self._ledger = ledger
        self._clock = clock
        self._seconds = dict(seconds)
        self._waiting: Counter[str] = Counter()
        self._since: dict[str, float] = {}

    def seconds(self, step: StepKey) -> float:
        """Return how long the step was stalled until now, in seconds."""
        key = str(step)
        running = self._clock() - self._since[key] if key in self._since else 0.0
        return self._seconds.get(key, 0.0) + running

    @asynccontextmanager
    async def waiting(self, step: StepKey) -> AsyncIterator[None]:
        """Count the step as stalled inside the context."""
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
        """Drop the steps that have ended and do not wait; the ledger keeps their stalls."""
        self._seconds = {
            key: seconds for key, seconds in self._seconds.items() if key in self._waiting or not ended(StepKey(*key.split("/")))
        }
