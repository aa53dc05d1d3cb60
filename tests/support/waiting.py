"""Poll metrics, files, processes and other servers, which have no watch. For objects of the cluster, use watches."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

DEADLINE_SECONDS = 600.0  # the longest wait in tests of the cluster; the kubelet may wait 300 s before it restarts a container
PAUSE_SECONDS = 0.2


async def eventually(check: Callable[[], Awaitable[T]]) -> T:
    """Poll `check` until it returns a true result, and return that. Raises TimeoutError after DEADLINE_SECONDS."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not (found := await check()):
            await asyncio.sleep(PAUSE_SECONDS)
    return found
