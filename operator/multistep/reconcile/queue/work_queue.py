"""A work queue of keys like controller-runtime's, with one worker at a time per key, delayed requeues and back-off.

The queue contains only keys, and a reconcile reads the object itself, so any number of events causes one reconcile. Workers serve
the namespaces in turn.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final

from multistep.backoff import Backoff
from multistep.errors import MultistepError, Unavailable
from multistep.logs import about
from multistep.reconcile.admission.concurrency_limit import FairQueue, Key


@dataclass(frozen=True)
class Requeue:
    """A result of a reconcile, which requests the next reconcile of the object."""

    after: float | None
    """Seconds until the next reconcile, unless an event comes earlier. None means only at the next event."""


SOON_SECONDS: Final = 0.5  # delay of a requeue whose cause soon disappears by itself
AT_NEXT_EVENT: Final = Requeue(None)


def earliest(seconds: Iterable[float | None]) -> Requeue:
    """Return a requeue after the shortest of these delays in seconds. A delay of None is ignored."""
    return Requeue(min((each for each in seconds if each is not None), default=None))


Work = Callable[[Key], Awaitable[Requeue]]

logger = logging.getLogger(__name__)

BACKOFF = Backoff(first=0.5, last=48.0, jitter=0.25)  # at most 60 s with jitter
MAX_RETRY_AFTER_SECONDS = 300.0  # a longer Retry-After of a server is shortened to this


@dataclass(frozen=True)
class _Timer:
    """A delayed requeue."""

    due: float
    """Time of the requeue, in the event loop's time.

    It is stored here because uvloop's ``call_later`` returns a handle without ``when()`` for delays of less than half a
    millisecond.
    """
    handle: asyncio.Handle


class WorkQueue:
    """Calls ``work`` for each added key, and again after the time that ``work`` returns.

    After an exception the key is requeued with back-off. An unexpected exception is logged with its traceback. So is a
    CancelledError of something that ``work`` awaited, because only ``stop`` cancels work.
    """

    def __init__(
        self,
        work: Work,
        *,
        workers: int,
        kind: str = "trial",
        waited: Callable[[float], object] = lambda _: None,
        failed: Callable[[BaseException], object] = lambda _: None,
    ) -> None:
        """Create the queue.

        ``kind`` is the kind of the objects, for the log. ``waited`` is called with the seconds for which a key waited for a worker,
        and ``failed`` with each exception of ``work``.
        """
        self._work = work
        self._waited = waited
        self._failed = failed
        self._since: dict[Key, float] = {}
        self._workers = workers
        self._kind = kind
        self._ready = FairQueue()
        self._busy: dict[Key, asyncio.Task[None]] = {}
        self._again: set[Key] = set()  # keys that were added while a worker reconciled them, to be requeued afterwards
        self._timers: dict[Key, _Timer] = {}
        self._failures: dict[Key, int] = {}
        self._started = self._stopped = False

    def start(self) -> None:
        """Start the workers in the running event loop."""
        self._started = True
        self._start_work()

    async def stop(self, *, within_seconds: float = 0.0) -> None:
        """Start no more work, and cancel running work that does not finish within ``within_seconds``.

        Cancelling is safe, because reconciles are idempotent.
        """
        self._stopped = True
        for timer in self._timers.values():
            timer.handle.cancel()
        if tasks := list(self._busy.values()):
            await asyncio.wait(tasks, timeout=within_seconds)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def add(self, key: Key) -> None:
        """Reconcile the key as soon as a worker is free."""
        self._drop_timer(key)
        if self._stopped:
            return
        if key in self._busy:
            self._again.add(key)
        else:
            self._since.setdefault(key, asyncio.get_running_loop().time())
            self._ready.add(key)
            self._start_work()

    def add_after(self, key: Key, seconds: float) -> None:
        """Requeue the key after ``seconds``. This replaces the key's former timer."""
        self._drop_timer(key)
        if not self._stopped:
            loop = asyncio.get_running_loop()
            self._timers[key] = _Timer(loop.time() + seconds, loop.call_later(seconds, self.add, key))

    def add_within(self, key: Key, seconds: float) -> None:
        """Requeue the key after ``seconds``, unless it is queued or due earlier."""
        timer = self._timers.get(key)
        if key not in self._ready and (timer is None or timer.due > asyncio.get_running_loop().time() + seconds):
            self.add_after(key, seconds)

    @property
    def depth(self) -> int:
        """Return the number of keys that wait for a worker."""
        return len(self._ready)

    def _start_work(self) -> None:
        """Start work on queued keys while workers are free."""
        while self._started and not self._stopped and self._ready and len(self._busy) < self._workers:
            key = self._ready.pop()
            self._waited(asyncio.get_running_loop().time() - self._since.pop(key))
            self._busy[key] = asyncio.create_task(self._run(key))

    async def _run(self, key: Key) -> None:
        try:
            with about(namespace=key[0], **{self._kind: key[1]}, reconcile=secrets.token_hex(4)):
                await self._once(key)
        finally:
            del self._busy[key]
            if key in self._again:
                self._again.discard(key)
                self.add(key)
            self._start_work()

    async def _once(self, key: Key) -> None:
        try:
            requeue = await self._work(key)
        except MultistepError as error:
            self._failed(error)
            logger.warning("%s; retrying in %.1f s", error, self._back_off(key, error))
            return
        except (Exception, asyncio.CancelledError) as error:
            if self._stopped and isinstance(error, asyncio.CancelledError):
                raise
            self._failed(error)
            logger.exception("retrying in %.1f s", self._back_off(key))
            return
        self._failures.pop(key, None)
        if requeue.after is not None:
            self.add_within(key, requeue.after)

    def _back_off(self, key: Key, error: MultistepError | None = None) -> float:
        """Requeue the key with exponential back-off, or after the server's Retry-After if that is longer. Return the delay."""
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        pause = BACKOFF.seconds(failures)
        if isinstance(error, Unavailable) and error.retry_after is not None:
            asked = Backoff(error.retry_after, MAX_RETRY_AFTER_SECONDS, BACKOFF.jitter)
            pause = max(pause, asked.seconds(1))
        self.add_after(key, pause)
        return pause

    def _drop_timer(self, key: Key) -> None:
        if (timer := self._timers.pop(key, None)) is not None:
            timer.handle.cancel()
