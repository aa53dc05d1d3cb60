"""Runs background tasks and periodic work. A failure of periodic work is logged and does not end the work."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from multistep.errors import MultistepError

logger = logging.getLogger(__name__)

RETRY_SECONDS: Final = 5.0


class BackgroundTasks:
    """Background tasks by name. The failure of a task is logged, and makes /healthz fail."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[None]] = {}

    @property
    def names(self) -> list[str]:
        """The tasks' names in start order."""
        return list(self._tasks)

    @property
    def failed(self) -> str | None:
        """The name of the first task that was cancelled or raised an exception, or None."""
        return next((name for name, task in self._tasks.items() if task.done() and (task.cancelled() or task.exception())), None)

    def start(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Start a task on the event loop."""
        task = self._tasks[name] = asyncio.create_task(work, name=name)
        task.add_done_callback(_log_failure)

    async def cancel(self) -> None:
        """Cancel all tasks and wait until they have ended."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()):
        logger.critical("%s ended", task.get_name(), exc_info=error)


async def repeat(name: str, seconds: Callable[[], float], work: Callable[[], Awaitable[object]]) -> None:
    """Run the work periodically, after each ``seconds()`` with a jitter of 20 %. A failure is logged, and does not change the
    schedule."""
    while True:
        await asyncio.sleep(seconds() * random.uniform(0.8, 1.2))
        await _attempt(name, work)


async def retry_until_success(name: str, work: Callable[[], Awaitable[object]], *, tries: int | None = None) -> None:
    """Run the work every RETRY_SECONDS until it succeeds once. With ``tries``, stop after that many failures. Set ``tries`` only
    for work on which nothing depends."""
    while not await _attempt(name, work) and tries != 1:
        tries = None if tries is None else tries - 1
        await asyncio.sleep(RETRY_SECONDS)


@contextmanager
def contained(what: str, content: Mapping[str, Any]) -> Iterator[None]:
    """Log an error that one object of many causes, so that the caller continues with the others. Anyone may have written the
    object."""
    try:
        yield
    except Exception:
        metadata = content.get("metadata") or {}
        logger.exception("%s, %s/%s, cannot be read", what, metadata.get("namespace"), metadata.get("name"))


async def _attempt(name: str, work: Callable[[], Awaitable[object]]) -> bool:
    try:
        await work()
        return True
    except MultistepError as error:
        logger.warning("%s: %s", name, error)
    except Exception:
        logger.exception("%s", name)
    return False
