"""All concurrency limits, and the release of the slots that one reconcile acquired.

A reconcile runs within ``Admission.reconcile``, which releases the slots that the reconcile acquired, whatever happened. Some slots
are kept longer: that of a starting pod until the pod runs, that of an active trial until the trial finishes, and that of a running
job until the job ends. Places in queues are kept too.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol

from multistep.reconcile.admission.concurrency_limit import ConcurrencyLimit, Key
from multistep.reconcile.admission.model_slots import ModelSlots
from multistep.reconcile.admission.pod_starts import PodStarts
from multistep.reconcile.admission.quotas import Quotas
from multistep.reconcile.admission.unschedulable_verifiers import UnschedulableVerifiers


class Settled(Protocol):
    """A limit or a queue."""

    def settle(self, key: Key) -> None:
        """Release the key's slots or place at the end of a reconcile, unless they are kept."""


@asynccontextmanager
async def admitted(limits: Iterable[Settled], key: Key) -> AsyncIterator[None]:
    """Release the slots that the key acquired in the ``async with`` block, except those that are kept, however the block ends."""
    with ExitStack() as stack:
        for each in limits:
            stack.callback(each.settle, key)
        yield


@dataclass
class Admission:
    """The limits that all trials share."""

    starts: PodStarts
    """Limits how many pods start at once. A slot is kept until the pod runs, but at most for a minute."""
    model_slots: ModelSlots
    """Limits the active trials of each model. A slot is kept from the pod's creation until the trial finishes or its pod is
    released."""
    quotas: Quotas
    """Queues of trials whose pod a ResourceQuota rejected."""
    execs: ConcurrencyLimit
    """Limits exec sessions."""
    transfers: ConcurrencyLimit
    """Limits checkpoints that are being stored or restored."""
    jobs: Sequence[ConcurrencyLimit]
    """Limits fetches and reads of tasks, and lookups and builds of images. A slot is kept until the job ends."""
    verifiers: UnschedulableVerifiers = field(default_factory=UnschedulableVerifiers)
    """Decides which trial releases its pod if the pods of several verifiers fit no node."""

    def reconcile(self, key: Key) -> AbstractAsyncContextManager[None]:
        """Return the context manager in which one reconcile of a trial runs. It releases the trial's slots at the end."""
        return admitted((*self.jobs, self.transfers, self.execs, self.quotas, self.model_slots, self.starts), key)

    def loaded(self, key: Key) -> None:
        """Record that the trial's task is loaded, so that the trial needs no job any more."""
        for each in self.jobs:
            each.leave(key)

    def forget(self, key: Key) -> None:
        """Record that the trial was deleted, or belongs to another operator."""
        self.model_slots.forget(key)
