"""Keeps track of closed steps, whose requests the gateway rejects, and of the requests of each step, whose number is limited."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

from multistep.gateway.refusal import Refused
from multistep.gateway.tokens import StepKey

MAX_OPEN: Final = 128
"""Maximum number of a step's open requests."""
MAX_BODIES: Final = 64 << 20
"""Maximum total size in bytes of the bodies of a step's open requests. It keeps one step from filling the gateway's memory: if the
gateway were OOM-killed, the open requests of all steps would be lost, and their trials would get another attempt."""
MAX_REQUESTS: Final = 20_000
"""Maximum number of a step's requests. Each is a row of the ledger."""

MAX_MODELS: Final = 64
"""Maximum number of models that a step requests. The operator reads the usage of all of them at once."""


class Steps:
    """The closed steps, and each step's open requests. closed: the steps that the ledger already records as closed; body_bytes:
    maximum size of one body; it replaces MAX_BODIES if larger."""

    def __init__(self, closed: Iterable[StepKey], body_bytes: int = 0) -> None:
        self._closed = set(closed)
        self._open: defaultdict[StepKey, set[asyncio.Task[Any]]] = defaultdict(set)
        self._requests = Counter[StepKey]()
        self._models: defaultdict[StepKey, set[str]] = defaultdict(set)
        self._bodies = Counter[StepKey]()
        self._parsing: defaultdict[StepKey, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._parse_seconds = dict[StepKey, float]()
        self._max_bodies = max(MAX_BODIES, body_bytes)

    def close(self, step: StepKey) -> None:
        """Refuse further requests of this step."""
        self._closed.add(step)
        del self._requests[step]
        self._models.pop(step, None)
        self._parse_seconds.pop(step, None)

    def refuse_closed(self, step: StepKey) -> None:
        """Raise Refused (401) if the step is closed."""
        if step in self._closed:
            raise Refused(401, "the step of this token has ended")

    def request_model(self, step: StepKey, model: str) -> None:
        """Count a model that the step requests. Raises Refused if the step has requested too many others."""
        models = self._models[step]
        if model not in models and len(models) >= MAX_MODELS:
            raise Refused(429, f"this step has requested {MAX_MODELS} models, the most that a step may request")
        models.add(model)

    def open_requests(self, step: StepKey) -> int:
        """Return how many requests of the step are open."""
        return len(self._open.get(step, ()))

    @asynccontextmanager
    async def parsing(self, step: StepKey) -> AsyncIterator[None]:
        """The caller parses a body of the step inside this context. A body of 5 MB can take two seconds, in which no other request
        is served. So a step's bodies are parsed one at a time, each after a pause as long as the parsing of the previous body."""
        async with self._parsing[step]:
            await asyncio.sleep(self._parse_seconds.get(step, 0.0))
            started = time.monotonic()
            try:
                yield
            finally:
                self._parse_seconds[step] = time.monotonic() - started

    @contextmanager
    def working(self, step: StepKey) -> Iterator[Callable[[int], None]]:
        """Count the current task as an open request of the step. Raises Refused if the step has too many.

        Yields a function that counts further bytes of the request's body, and raises Refused if the step's bodies have too many.
        """
        if self.open_requests(step) >= MAX_OPEN:
            raise Refused(429, f"this step already has {MAX_OPEN} open requests")
        if self._requests[step] >= MAX_REQUESTS:
            raise Refused(429, f"this step has sent {MAX_REQUESTS} requests, the most that a step may send")
        self._requests[step] += 1
        task = asyncio.current_task()
        assert task is not None
        self._open[step].add(task)
        held = 0

        def hold(count: int) -> None:
            nonlocal held
            held += count
            self._bodies[step] += count
            if self._bodies[step] > self._max_bodies:
                raise Refused(429, f"the bodies of this step's open requests have more than {self._max_bodies} bytes")

        try:
            yield hold
        finally:
            self._bodies[step] -= held
            if not self._bodies[step]:
                del self._bodies[step]
            self._open[step].discard(task)
            if not self._open[step]:
                del self._open[step]
                self._parsing.pop(step, None)

    async def wait(self, step: StepKey, seconds: float) -> None:
        """Wait until the step has no open request, for at most ``seconds``."""
        if tasks := set(self._open.get(step, ())):
            await asyncio.wait(tasks, timeout=seconds)

    def abandon(self, step: StepKey) -> None:
        """Cancel the step's open requests: a process that the agent left running could otherwise keep their bodies in memory."""
        for task in self._open.get(step, ()):
            task.cancel()

    async def wait_all(self, seconds: float) -> None:
        """Wait until no step has an open request, for at most ``seconds``."""
        if tasks := {task for each in self._open.values() for task in each}:
            await asyncio.wait(tasks, timeout=seconds)
