"""Keeps track of closed steps, whose requests the gateway rejects, and of the requests of each step, whose number is limited."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Final

from multistep.gateway.keys.tokens import LONGEST_SECONDS, StepKey
from multistep.gateway.model_api.error_answers import Refused

MAX_OPEN: Final = 128
"""Maximum number of a step's open requests."""
MAX_BODIES: Final = 64 << 20
"""Maximum total size in bytes of the bodies of a step's open requests. It keeps one step from filling the gateway's memory: if the
gateway were OOM-killed, the open requests of all steps would be lost, and their trials would get another attempt."""
MAX_REQUESTS: Final = 20_000
"""Maximum number of a step's requests. Each is a row of the ledger."""

MAX_MODELS: Final = 64
"""Maximum number of models that a step requests. The operator reads the usage of all of them at once."""

LARGE_BYTES: Final = 1 << 18
"""Size of a document from which on its parsing takes noticeable time."""


@dataclass
class _Step:
    """What the gateway keeps of a step while its requests are open, and until it is closed. models: the models that it requested;
    parse_seconds: how long the parsing of its last body or large answer took; used_at: when it last sent a request."""

    requests: int = 0
    bodies: int = 0
    parse_seconds: float = 0.0
    used_at: float = 0.0
    models: set[str] = field(default_factory=set)
    open: set[asyncio.Task[Any]] = field(default_factory=set)
    parsing: asyncio.Lock = field(default_factory=asyncio.Lock)


class Steps:
    """The closed steps, and what each other step has sent. closed: the steps that the ledger already records as closed, with the
    time until which their tokens are valid; body_bytes: maximum size of one body; it replaces MAX_BODIES if larger; clock: seconds
    since the epoch."""

    def __init__(self, closed: Mapping[StepKey, float], body_bytes: int = 0, clock: Callable[[], float] = time.time) -> None:
        self._closed = dict(closed)
        self._steps: dict[StepKey, _Step] = {}
        self._max_bodies = max(MAX_BODIES, body_bytes)
        self._clock = clock
        self._large = asyncio.Lock()
        self._large_seconds = 0.0  # how long the parsing of the last large document took

    def close(self, step: StepKey, until: float | None = None) -> None:
        """Refuse further requests of this step. until: when its tokens expire, so that the step may be forgotten; None: unknown."""
        self._closed[step] = self._clock() + LONGEST_SECONDS if until is None else until
        if not self.open_requests(step):
            self._steps.pop(step, None)

    def is_closed(self, step: StepKey) -> bool:
        """Return whether the step is closed."""
        return step in self._closed

    def forget(self) -> None:
        """Drop the steps whose tokens have expired."""
        now = self._clock()
        self._closed = {step: until for step, until in self._closed.items() if until > now}
        oldest = now - LONGEST_SECONDS
        self._steps = {step: found for step, found in self._steps.items() if found.open or found.used_at > oldest}

    def refuse_closed(self, step: StepKey) -> None:
        """Raise Refused (401) if the step is closed."""
        if step in self._closed:
            raise Refused(401, "the step of this token has ended")

    def request_model(self, step: StepKey, model: str) -> None:
        """Count a model that the step, one of whose requests is open, requests. Raises Refused if it has requested too many
        others."""
        models = self._steps[step].models
        if model not in models and len(models) >= MAX_MODELS:
            raise Refused(429, f"this step has requested {MAX_MODELS} models, the most that a step may request")
        models.add(model)

    def open_requests(self, step: StepKey) -> int:
        """Return how many requests of the step are open."""
        return len(self._tasks(step))

    @asynccontextmanager
    async def parsing(self, step: StepKey, size: int) -> AsyncIterator[None]:
        """The caller, an open request of the step, parses its body, or a large part of its answer, inside this context. 5 MB can
        take two seconds, in which no other request is served. So those of a step, and the large ones of all steps, are parsed one
        at a time, each after a pause as long as the parsing of the previous one. size: in bytes."""
        found, large = self._steps[step], size > LARGE_BYTES
        async with found.parsing, self._large if large else nullcontext():
            await asyncio.sleep(max(found.parse_seconds, self._large_seconds if large else 0.0))
            started = time.monotonic()
            try:
                yield
            finally:
                found.parse_seconds = took = time.monotonic() - started
                if large:
                    self._large_seconds = took

    @contextmanager
    def working(self, step: StepKey) -> Iterator[Callable[[int], None]]:
        """Count the current task as an open request of the step. Raises Refused if the step has too many.

        Yields a function that counts further bytes of the request's body, and raises Refused if the step's bodies have too many.
        """
        found = self._steps.setdefault(step, _Step())
        found.used_at = self._clock()
        if len(found.open) >= MAX_OPEN:
            raise Refused(429, f"this step already has {MAX_OPEN} open requests")
        if found.requests >= MAX_REQUESTS:
            raise Refused(429, f"this step has sent {MAX_REQUESTS} requests, the most that a step may send")
        found.requests += 1
        task = asyncio.current_task()
        assert task is not None
        found.open.add(task)
        held = 0

        def hold(count: int) -> None:
            nonlocal held
            held += count
            found.bodies += count
            if found.bodies > self._max_bodies:
                raise Refused(429, f"the bodies of this step's open requests have more than {self._max_bodies} bytes")

        try:
            yield hold
        finally:
            found.bodies -= held
            found.open.discard(task)
            if not found.open and step in self._closed:
                self._steps.pop(step, None)

    async def wait(self, step: StepKey, seconds: float) -> None:
        """Wait until the step has no open request, for at most ``seconds``."""
        if tasks := {*self._tasks(step)}:
            await asyncio.wait(tasks, timeout=seconds)

    def abandon(self, step: StepKey) -> None:
        """Cancel the step's open requests: a process that the agent left running could otherwise keep their bodies in memory."""
        for task in self._tasks(step):
            task.cancel()

    async def wait_all(self, seconds: float) -> None:
        """Wait until no step has an open request, for at most ``seconds``."""
        if tasks := {task for each in self._steps.values() for task in each.open}:
            await asyncio.wait(tasks, timeout=seconds)

    def _tasks(self, step: StepKey) -> Collection[asyncio.Task[Any]]:
        return found.open if (found := self._steps.get(step)) is not None else ()
