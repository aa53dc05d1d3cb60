"""The admission of trials and sweeps: every limit, and the release of what one reconcile took of them.

A reconcile runs within ``Admission.reconcile``. What it acquired is released at its end, whatever happened, except what something
keeps: the slot of a pod that starts, of an active trial, of a running job; or the place in a queue. That is released by what ends
it: the pod runs, the trial finishes, the job ends.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol

from multistep.reconcile.admission.concurrency_limit import ConcurrencyLimit, Key
from multistep.reconcile.admission.model_slots import ModelSlots
from multistep.reconcile.admission.pod_starts import PodStarts, VerifierRoom
from multistep.reconcile.admission.quotas import Quotas


class Settled(Protocol):
    """A limit or a queue."""

    def settle(self, key: Key) -> None:
        """Release, at the end of a reconcile, what the key has and nothing keeps."""


@asynccontextmanager
async def admitted(limits: Iterable[Settled], key: Key) -> AsyncIterator[None]:
    """Release what the key takes of the limits within the ``async with`` block, and nothing keeps, however the block ends."""
    with ExitStack() as stack:
        for each in limits:
            stack.callback(each.settle, key)
        yield


@dataclass
class Admission:
    """The limits that all trials share."""

    starts: PodStarts
    """Pods that start; kept until the pod runs, at most for a minute."""
    model_slots: ModelSlots
    """Active trials of each model; kept from the pod's creation until the trial finishes or its pod is released."""
    quotas: Quotas
    """Creations of pods that a ResourceQuota rejected."""
    execs: ConcurrencyLimit
    """Exec sessions."""
    transfers: ConcurrencyLimit
    """Checkpoints that are stored or restored."""
    jobs: Sequence[ConcurrencyLimit]
    """Fetches and reads of tasks, lookups and builds of images; kept until the job ends."""
    room: VerifierRoom = field(default_factory=VerifierRoom)
    """Which trial gives way if the pods of several verifiers fit no node."""

    def reconcile(self, key: Key) -> AbstractAsyncContextManager[None]:
        """Run one reconcile of a trial within the limits."""
        return admitted((*self.jobs, self.transfers, self.execs, self.quotas, self.model_slots, self.starts), key)

    def loaded(self, key: Key) -> None:
        """Record that the trial's task is loaded: the trial needs no job any more."""
        for each in self.jobs:
            each.leave(key)

    def forget(self, key: Key) -> None:
        """Record that the trial was deleted, or belongs to another operator."""
        self.model_slots.forget(key)
