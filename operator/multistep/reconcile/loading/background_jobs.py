"""Runs background jobs: fetches and reads of tasks, lookups and builds of images. Each runs once for all objects that need it."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Hashable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Generic, TypeVar

from multistep.reconcile.admission.concurrency_limit import ConcurrencyLimit, Key, Wake

REMEMBERED: Final = 4096
RECHECK_SECONDS: Final = 120.0  # an object that waits for a job is reconciled at least this often

T = TypeVar("T")
I = TypeVar("I", bound=Hashable)  # noqa: E741 (the ID of a job)
V = TypeVar("V")


@dataclass
class Job(Generic[T]):
    """A running background job."""

    starter: Key
    """Key of the object whose slot the job uses."""
    task: asyncio.Task[T]
    waiting: dict[str, Key] = field(default_factory=dict)
    """Keys of the objects to requeue when the job ends, by the objects' UIDs."""


class BackgroundJobs(Generic[I, T]):
    """The running background jobs, by ID. A job runs once for all objects that need it, and uses the slot of the object that
    started it."""

    def __init__(self, slots: int, wake: Wake, *, results: bool = True) -> None:
        """Create the object without jobs. At most ``slots`` jobs run at once. One namespace gets at most all slots but one.

        ``results`` is whether a job's result is kept for the waiting objects. A job's error is always kept.
        """
        self.limit = ConcurrencyLimit(slots, wake, max_per_namespace=slots - 1)
        self._wake = wake
        self._results = results
        self._running: dict[I, Job[T]] = {}
        self._outcomes: OrderedDict[str, tuple[I, T | Exception]] = OrderedDict()  # job's ID and outcome, by waiting UID

    def __contains__(self, id: I) -> bool:
        return id in self._running

    def outcome(self, uid: str, id: I) -> T | None:
        """Return the result, or raise the error, of the job with this ID.

        Return None unless the job ended while the object with this UID waited for it.
        """
        about, outcome = self._outcomes.pop(uid, (None, None))
        if about == id and isinstance(outcome, Exception):
            raise outcome
        return outcome if about == id else None  # type: ignore[return-value]  # an Exception was raised

    def start(self, id: I, key: Key, uid: str, run: Callable[[], Coroutine[Any, Any, T]]) -> Job[T] | None:
        """Return the job with this ID, and start it if it does not run.

        Return None if no slot is free or another job uses the key's slot. The key is then requeued later.
        """
        if (job := self._running.get(id)) is not None:
            return job
        # Another job may still use the key's slot, e.g. one that a deleted object of the same name started.
        if (other := self._started_by(key)) is not None:
            other.waiting[uid] = key
            return None
        if not self.limit.acquire(key):
            return None
        self.limit.keep(key)
        job = self._running[id] = Job(key, asyncio.create_task(run(), name=f"job for {key[0]}/{key[1]}"))
        job.task.add_done_callback(partial(self._ended, id))  # unlike a finally, a callback also runs if the task never starts
        return job

    async def stop(self) -> None:
        """Cancel all running jobs."""
        tasks = [job.task for job in self._running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _started_by(self, key: Key) -> Job[T] | None:
        return next((job for job in self._running.values() if job.starter == key), None)

    def _ended(self, id: I, task: asyncio.Task[T]) -> None:
        job = self._running.pop(id)
        error = None if task.cancelled() else task.exception()
        for uid in job.waiting:
            if isinstance(error, Exception):
                self._outcomes[uid] = id, error
            elif self._results and not task.cancelled():
                self._outcomes[uid] = id, task.result()
        forget_oldest(self._outcomes)
        self.limit.release(job.starter)
        for key in job.waiting.values():
            self._wake(key)


def forget_oldest(remembered: OrderedDict[I, V]) -> None:
    """Delete the oldest entries beyond REMEMBERED, to limit memory."""
    while len(remembered) > REMEMBERED:
        remembered.popitem(last=False)
