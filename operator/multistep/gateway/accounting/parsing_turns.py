"""Lets requests parse large documents one at a time, sweep by sweep. The gateway serves no other request while it parses a
document, which takes up to two seconds."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final

_LONGEST_GAP: Final = 0.5
"""Maximum seconds between two large documents. The gap lets the gateway answer the kubelet's probe, which takes several turns of
the event loop. Only a step that sends costly documents waits longer (OpenSteps.parsing)."""


class ParsingTurns:
    """The queue of the large documents of all steps."""

    def __init__(self) -> None:
        self._busy = False
        self._free_at = 0.0  # end of the gap after the last document, on the monotonic clock
        # The waiting documents by sweep. The first sweep has the next turn.
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @asynccontextmanager
    async def take(
        self, sweep: str, waiting: AbstractAsyncContextManager[None], seconds: float | None = None
    ) -> AsyncIterator[None]:
        """Wait for a document's turn, which lasts as long as the context. Documents with different ``sweep`` names take turns. The
        context ``waiting`` is entered while the document waits. Raises TimeoutError if that takes longer than ``seconds``."""
        has_turn, started = not self._busy, None
        self._busy = True
        try:
            if not has_turn:
                async with waiting:
                    await self._next(sweep, seconds)
                    has_turn = True
            await asyncio.sleep(max(0.0, self._free_at - time.monotonic()))
            started = time.monotonic()
            yield
        finally:
            if started is not None:
                now = time.monotonic()
                self._free_at = now + min(_LONGEST_GAP, now - started)
            if has_turn:
                self._pass_on()

    async def _next(self, sweep: str, seconds: float | None) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(sweep, deque()).append(waiter)
        try:
            async with asyncio.timeout(seconds):
                await waiter
        except BaseException:
            if not waiter.cancelled():  # the wait failed just after the document got its turn
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        """Give the turn to the first document of the next sweep."""
        while self._waiting:
            sweep, waiters = self._waiting.popitem(last=False)
            waiter = waiters.popleft()
            if waiters:
                self._waiting[sweep] = waiters
            if not waiter.done():
                waiter.set_result(None)
                return
        self._busy = False
