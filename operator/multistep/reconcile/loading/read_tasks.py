"""Reads tasks in the background: a few at a time, fair between namespaces, each task once for all trials that need it.

A reconcile waits PATIENCE_SECONDS for its read. A longer read continues in the background, and requeues the trial when it ends.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from multistep.api.common.base_model import Metadata
from multistep.errors import InvalidSpec, SourceError
from multistep.reconcile.admission.background_jobs import RECHECK_SECONDS, BackgroundJobs, forget_oldest
from multistep.reconcile.admission.concurrency_limit import Key, Wake
from multistep.sources.reader.fork_server import ReadFailed
from multistep.sources.reader.read_task import ReadTask
from multistep.sources.task.condition_reasons import FETCHING

AT_ONCE: Final = 2  # concurrent reads, each in a process of at most 256 MiB; a namespace has at most one
PATIENCE_SECONDS: Final = 0.25
TRIES: Final = 3
MAX_SECONDS: Final = 300.0  # of a read with its ConfigMaps; the child that reads has a shorter limit of its own

TaskKey = tuple[str, ...]


class Reads:
    """The concurrency limit on reads. wake: requeues a trial; patience_seconds: how long a reconcile waits for its read."""

    def __init__(self, wake: Wake, *, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self.patience_seconds = patience_seconds
        self._jobs: BackgroundJobs[TaskKey, ReadTask] = BackgroundJobs(AT_ONCE, wake, results=False)  # TrialLoader caches results
        self._deaths: OrderedDict[TaskKey, int] = OrderedDict()

    async def get(
        self, asker: Metadata, task: TaskKey, read: Callable[[], Awaitable[ReadTask]], *, started: bool = False
    ) -> ReadTask:
        """Return the task that ``read`` reads. Raises the errors of ``read``, and SourceError while the read runs or is queued.

        started: whether the trial has started. Its task was read before, so if the process that reads it dies now, the operator or
        its node is short of memory: the trial waits, however often this happens.
        """
        try:
            return await self._get(asker, task, read)
        except ReadFailed as error:
            deaths = self._deaths.get(task, 0)
            if started or deaths < TRIES:
                raise
            raise InvalidSpec(f"spec.task: {error}, {deaths} times in a row") from None

    async def _get(self, asker: Metadata, task: TaskKey, read: Callable[[], Awaitable[ReadTask]]) -> ReadTask:
        self._jobs.outcome(asker.uid, task)
        key = asker.namespace, asker.name
        if (job := self._jobs.start(task, key, asker.uid, partial(self._run, task, read))) is None:
            raise _not_yet()
        await asyncio.wait([job.task], timeout=self.patience_seconds)
        if job.task.done():
            return job.task.result()
        job.waiting[asker.uid] = key
        raise _not_yet()

    def settle(self, key: Key) -> None:
        """Release the trial's slot unless a read uses it. Call it at the end of each reconcile."""
        self._jobs.settle(key)

    def leave(self, key: Key) -> None:
        """Drop the trial from the queue: its task is loaded."""
        self._jobs.leave(key)

    async def stop(self) -> None:
        """Cancel all running reads."""
        await self._jobs.stop()

    async def _run(self, task: TaskKey, read: Callable[[], Awaitable[ReadTask]]) -> ReadTask:
        try:
            async with asyncio.timeout(MAX_SECONDS):
                found = await read()
        except TimeoutError:
            raise SourceError(f"reading the task took more than {MAX_SECONDS:g} s", transient=True) from None
        except ReadFailed:
            self._deaths[task] = self._deaths.pop(task, 0) + 1
            forget_oldest(self._deaths)
            raise
        self._deaths.pop(task, None)
        return found


def _not_yet() -> SourceError:
    text = "the task is being read or is queued for reading"
    return SourceError(text, transient=True, reason=FETCHING, retry_seconds=RECHECK_SECONDS)
