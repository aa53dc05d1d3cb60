"""The admission of trials: all limits, and what one reconcile took of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol

from multistep.reconcile.admission.concurrency_limit import ConcurrencyLimit, Key
from multistep.reconcile.admission.model_slots import ModelSlots
from multistep.reconcile.admission.pod_starts import PodStarts, VerifierRoom
from multistep.reconcile.admission.quotas import Quotas


class Jobs(Protocol):
    """Background jobs with a concurrency limit; implemented in reconcile.loading."""

    def settle(self, key: Key) -> None:
        """Release the trial's slots unless a job uses them."""

    def leave(self, key: Key) -> None:
        """Remove the trial from the queues, because it needs no job any more."""


@dataclass
class Admission:
    """The limits that all trials share. jobs: fetches, reads and builds; room: which trial gives way if verifiers fit no node."""

    starts: PodStarts
    model_slots: ModelSlots
    quotas: Quotas
    execs: ConcurrencyLimit
    transfers: ConcurrencyLimit
    jobs: Sequence[Jobs]
    room: VerifierRoom = field(default_factory=VerifierRoom)

    @asynccontextmanager
    async def reconcile(self, key: Key) -> AsyncIterator[None]:
        """Release at the end, even after an error, what the reconcile of this trial took and nothing uses."""
        try:
            yield
        finally:
            self.starts.settle(key)
            self.model_slots.settle(key)
            self.quotas.settle(key)
            self.execs.release(key)
            if not self.execs.is_queued(key):  # a trial that is queued for a session needs its transfer slot in that session
                self.transfers.release(key)
            for each in self.jobs:
                each.settle(key)

    def loaded(self, key: Key) -> None:
        """Record that the trial's task is loaded: the trial leaves the queues for fetches, reads and builds."""
        for each in self.jobs:
            each.leave(key)

    def forget(self, key: Key) -> None:
        """Record that the trial was deleted, or belongs to another operator."""
        self.model_slots.forget(key)
