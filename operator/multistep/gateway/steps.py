"""Keeps track of closed steps, whose requests the gateway rejects, and of the open requests of each step."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from multistep.gateway.tokens import StepKey


class Steps:
    """The closed steps, and each step's open requests. closed: the steps that the ledger already records as closed."""

    def __init__(self, closed: Iterable[StepKey]) -> None:
        self._closed = set(closed)
        self._open: defaultdict[StepKey, set[asyncio.Task[Any]]] = defaultdict(set)

    def close(self, step: StepKey) -> None:
        """Refuse further requests of this step."""
        self._closed.add(step)

    def is_closed(self, step: StepKey) -> bool:
        """Return whether further requests of this step are refused."""
        return step in self._closed

    @contextmanager
    def working(self, step: StepKey) -> Iterator[None]:
        """Count the current task as an open request of the step."""
        task = asyncio.current_task()
        assert task is not None
        self._open[step].add(task)
        try:
            yield
        finally:
            self._open[step].discard(task)
            if not self._open[step]:
                del self._open[step]

    async def wait(self, step: StepKey, seconds: float) -> None:
        """Wait until the step has no open request, for at most ``seconds``."""
        if tasks := set(self._open.get(step, ())):
            await asyncio.wait(tasks, timeout=seconds)

    async def wait_all(self, seconds: float) -> None:
        """Wait until no step has an open request, for at most ``seconds``."""
        if tasks := {task for each in self._open.values() for task in each}:
            await asyncio.wait(tasks, timeout=seconds)
