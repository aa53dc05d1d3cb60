"""A queue of keys to be worked on, like controller-runtime's: one worker at a time per key, timers, back-off.

Keys only: what is to be done is found out by looking, so that any number of events makes one look.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from ..errors import MultistepError

Key = tuple[str, str]  # namespace, name
Work = Callable[[Key], Awaitable[float | None]]

logger = logging.getLogger(__name__)

FIRST_BACKOFF_SECONDS = 0.5
LAST_BACKOFF_SECONDS = 60.0


class WorkQueue:
    """Calls ``work`` for keys that were added; it returns the seconds after which to look again, or None.

    After an exception in ``work`` the key comes again, later each time; one that nobody foresaw is logged with its trace.
    """

    def __init__(self, work: Work, *, workers: int) -> None:
        self._work = work
        self._workers = workers
        self._ready: asyncio.Queue[Key] = asyncio.Queue()
        self._queued: set[Key] = set()  # waiting for a worker
        self._busy: set[Key] = set()
        self._again: set[Key] = set()  # added while busy
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._failures: dict[Key, int] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._idle = asyncio.Event()  # nothing is worked on
        self._idle.set()
        self._stopping = False

    def start(self) -> None:
        """Begin to work, in the running event loop."""
        self._tasks = [asyncio.create_task(self._run()) for _ in range(self._workers)]

    async def stop(self, *, within_seconds: float = 0.0) -> None:
        """Begin nothing new, and let what goes on end within so many seconds; then end it where it is.

        Whatever it was is found again by looking.
        """
        self._stopping = True
        for timer in self._timers.values():
            timer.cancel()
        while not self._ready.empty():
            self._ready.get_nowait()
        with suppress(TimeoutError):
            async with asyncio.timeout(within_seconds):
                await self._idle.wait()
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with suppress(asyncio.CancelledError):
                await task

    def add(self, key: Key) -> None:
        """Look at the key as soon as a worker is free."""
        self._drop_timer(key)
        if self._stopping:
            return
        if key in self._busy:
            self._again.add(key)
        elif key not in self._queued:
            self._queued.add(key)
            self._ready.put_nowait(key)

    def add_after(self, key: Key, seconds: float) -> None:
        """Look at the key in a while, unless something else makes it sooner."""
        self._drop_timer(key)
        if self._stopping:
            return
        self._timers[key] = asyncio.get_running_loop().call_later(seconds, self.add, key)

    @property
    def depth(self) -> int:
        """Keys that wait for a worker."""
        return self._ready.qsize()

    async def _run(self) -> None:
        while True:
            key = await self._ready.get()
            self._queued.discard(key)
            self._busy.add(key)
            self._idle.clear()
            try:
                await self._once(key)
            finally:
                self._busy.discard(key)
                if not self._busy:
                    self._idle.set()
            if key in self._again:
                self._again.discard(key)
                self.add(key)

    async def _once(self, key: Key) -> None:
        try:
            again = await self._work(key)
        except MultistepError as error:
            logger.warning("%s/%s: %s; trying again in %.1f s", *key, error, self._back_off(key))
            return
        except Exception:
            logger.exception("%s/%s: trying again in %.1f s", *key, self._back_off(key))
            return
        self._failures.pop(key, None)
        if again is not None:
            self.add_after(key, again)

    def _back_off(self, key: Key) -> float:
        """Try the key again after seconds that double with each failure; returns them."""
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        pause = min(LAST_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * 2.0 ** min(failures - 1, 30))
        self.add_after(key, pause)
        return pause

    def _drop_timer(self, key: Key) -> None:
        if (timer := self._timers.pop(key, None)) is not None:
            timer.cancel()
