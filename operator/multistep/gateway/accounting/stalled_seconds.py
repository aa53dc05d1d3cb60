"""Measures how long the provider stalled each step: the time in which at least one request of the step waited because the provider
refused this request, or another request with the same credential and model. Overlapping waits count once.

The agent host extends the agent's timeout by this time. The ledger stores it, so that it survives restarts of the gateway.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from multistep.gateway.accounting.request_ledger import Ledger
from multistep.gateway.keys.tokens import StepKey


class Stalls:
    """The stalls of all steps. seconds: the stalls in the ledger, by StepKey as text; clock: monotonic, in seconds."""

    def __init__(self, ledger: Ledger, seconds: Mapping[str, float], clock: Callable[[], float] = time.monotonic) -> None:
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
            key: each for key, each in self._seconds.items() if key in self._waiting or not ended(StepKey(*key.split("/")))
        }
