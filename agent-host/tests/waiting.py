"""Functions that wait for a condition, and a command that shows tests whether all its processes have ended."""

from __future__ import annotations

import asyncio
import fcntl
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any


async def eventually(holds: Callable[[], object], seconds: float = 30) -> None:
    """Wait until the condition holds. Raises TimeoutError after `seconds`."""
    async with asyncio.timeout(seconds):
        while not holds():
            await asyncio.sleep(0.05)


def holding(lock: Path) -> str:
    """Return a command that holds a lock on the file for a minute. A background process of the command holds the same lock."""
    return f"exec 9> {lock}; flock 9; touch {lock}.held; sleep 60 & sleep 60"


def was_held(lock: Path) -> bool:
    """Return whether the command of ``holding`` has acquired the lock, even if it has released it since."""
    return Path(f"{lock}.held").exists()


def is_free(lock: Path) -> bool:
    """Return whether no process holds the lock."""
    with lock.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


async def cancelled(run: Callable[[str], Coroutine[Any, Any, object]], lock: Path) -> None:
    """Run the command of ``holding`` with ``run``, cancel it, and wait until all its processes have ended."""
    running = asyncio.create_task(run(holding(lock)))
    await eventually(lambda: was_held(lock))
    running.cancel()
    await asyncio.wait([running])
    await eventually(lambda: is_free(lock))
