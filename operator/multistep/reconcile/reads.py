"""Reads of tasks: in the background, a few at once, fair between namespaces, the same task only once.

A reconcile waits a moment for a quick read. A longer one runs on without a worker, and wakes the trial when it ends.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from multistep.api.model import Metadata
from multistep.errors import InvalidSpec, SourceError
from multistep.reconcile.bounds import Bound, Wake
from multistep.reconcile.turns import Key
from multistep.sources.read_task import ReadTask
from multistep.sources.reader.fork_server import ReadFailed
from multistep.sources.reasons import FETCHING

AT_ONCE: Final = 2  # processes of at most 256 MiB each; one namespace has at most one of them
PATIENCE_SECONDS: Final = 0.25
TRIES: Final = 3
_REMEMBERED: Final = 4096

TaskKey = tuple[str, ...]


@dataclass
class _Read:
    """A read in the background. starter: whose slot it has; waiting: whom to wake, by UID."""

    starter: Key
    task: asyncio.Task[ReadTask]
    waiting: dict[str, Key] = field(default_factory=dict)


class Reads:
    """The concurrency limit on reads. wake: requeues a trial; patience_seconds: for which a reconcile waits for its read."""

    def __init__(self, wake: Wake, *, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self.patience_seconds = patience_seconds
        self._wake = wake
        self._bound = Bound(AT_ONCE, wake, most_each=AT_ONCE - 1)
        self._running: dict[TaskKey, _Read] = {}
        self._failed: OrderedDict[str, tuple[TaskKey, Exception]] = OrderedDict()  # by the trial's UID
        self._deaths: OrderedDict[TaskKey, int] = OrderedDict()

    async def get(self, asker: Metadata, task: TaskKey, read: Callable[[], Awaitable[ReadTask]]) -> ReadTask:
        """The task, which `read` reads. Raises what that raised, or SourceError while it runs or is queued."""
        about, error = self._failed.pop(asker.uid, (None, None))
        if about == task and error is not None:
            raise error
        key = asker.namespace, asker.name
        running = self._running.get(task)
        if running is None:
            if not self._bound.ask(key):
                raise _not_yet()
            running = self._start(task, key, read)
        await asyncio.wait([running.task], timeout=self.patience_seconds)
        if running.task.done():
            return running.task.result()
        running.waiting[asker.uid] = key
        raise _not_yet()

    def settle(self, key: Key) -> None:
        """A reconcile ended: a slot that it did not use is free again."""
        if not any(each.starter == key for each in self._running.values()):
            self._bound.free(key)

    async def stop(self) -> None:
        """Cancel all running reads."""
        tasks = [each.task for each in self._running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self, task: TaskKey, key: Key, read: Callable[[], Awaitable[ReadTask]]) -> _Read:
        running = _Read(key, asyncio.create_task(self._run(task, read), name=f"reading the task of {key[0]}/{key[1]}"))
        self._running[task] = running
        running.task.add_done_callback(lambda done: self._finished(task, done))
        return running

    async def _run(self, task: TaskKey, read: Callable[[], Awaitable[ReadTask]]) -> ReadTask:
        try:
            found = await read()
        except ReadFailed as error:
            deaths = self._deaths[task] = self._deaths.pop(task, 0) + 1
            _bound(self._deaths)
            if deaths >= TRIES:
                raise InvalidSpec(f"spec.task: {error}, {deaths} times in a row") from None
            raise
        self._deaths.pop(task, None)
        return found

    def _finished(self, task: TaskKey, done: asyncio.Task[ReadTask]) -> None:
        ended = self._running.pop(task)
        error = None if done.cancelled() else done.exception()
        for uid, key in ended.waiting.items():
            if isinstance(error, Exception):
                self._failed[uid] = task, error
            self._wake(key)
        _bound(self._failed)
        self._bound.free(ended.starter)


def _bound(remembered: OrderedDict[str, tuple[TaskKey, Exception]] | OrderedDict[TaskKey, int]) -> None:
    while len(remembered) > _REMEMBERED:
        remembered.popitem(last=False)


def _not_yet() -> SourceError:
    return SourceError("the task is being read or is queued for reading", transient=True, reason=FETCHING, retry_seconds=None)
