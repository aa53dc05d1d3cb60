"""Waiting for what nothing reports: metrics, files, processes, other servers. For objects of the cluster there are watches."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

DEADLINE_SECONDS = 240.0  # no wait of the tests of the cluster lasts longer
PAUSE_SECONDS = 0.2


async def eventually(check: Callable[[], Awaitable[T]]) -> T:
    """The first answer of the check that is true. Raises TimeoutError."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not (found := await check()):
            await asyncio.sleep(PAUSE_SECONDS)
    return found
