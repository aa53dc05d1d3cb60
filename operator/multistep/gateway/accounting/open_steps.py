"""The closed steps, whose requests the gateway rejects, and the requests of each other step, whose number is limited."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Final

from multistep.gateway.accounting.parsing_turns import ParsingTurns
from multistep.gateway.keys.tokens import LONGEST_SECONDS, StepKey
from multistep.gateway.model_api.error_answers import Refused

MAX_OPEN: Final = 128
"""Maximum number of a step's open requests."""
MAX_BODIES: Final = 64 << 20
"""Maximum total size in bytes of the bodies of a step's open requests, so that one step cannot fill the gateway's memory. If the
gateway were OOM-killed, the open requests of all steps would be lost, and their trials would get another attempt."""
MAX_REQUESTS: Final = 20_000
"""Maximum number of a step's requests. Each is a row of the ledger."""

MAX_MODELS: Final = 64
"""Maximum number of models that a step may request. The operator reads the usage of all of them at once."""

LARGE_BYTES: Final = 1 << 18
"""Documents of more bytes take noticeable time to parse."""


@dataclass
class _Step:
    """What the gateway counts for a step, until the step is closed and has no open request."""

    requests: int = 0
    bodies: int = 0
    """Total bytes of the bodies of the open requests."""
    parse_seconds: float = 0.0
    """How long the gateway took to parse the step's last body or large answer."""
    parsed_at: float = 0.0
    """When that parsing ended, on the monotonic clock."""
    last_model: str = ""
    """The model of the last request."""
    used_at: float = 0.0
    """When the step last sent a request."""
    models: set[str] = field(default_factory=set)
    """All models that the step requested."""
    open: set[asyncio.Task[Any]] = field(default_factory=set)
    parsing: asyncio.Lock = field(default_factory=asyncio.Lock)


class OpenSteps:
    """The closed steps, and the counts of each other step."""

    def __init__(self, closed: Mapping[StepKey, float], body_bytes: int = 0, clock: Callable[[], float] = time.time) -> None:
        """Start with the steps that the ledger records as closed, and the times at which their tokens expire.

        A step may have bodies of MAX_BODIES, or of ``body_bytes`` if that is larger. ``clock`` returns seconds since the epoch.
        """
        self._closed = dict(closed)
        self._steps: dict[StepKey, _Step] = {}
        self._max_bodies = max(MAX_BODIES, body_bytes)
        self._clock = clock
        self._turns = ParsingTurns()

    def close(self, step: StepKey, until: float | None = None) -> None:
        """Refuse further requests of this step until ``until``, when its tokens expire. None means that this time is unknown."""
        self._closed[step] = self._clock() + LONGEST_SECONDS if until is None else until
        if not self.open_requests(step):
            self._steps.pop(step, None)

    def is_closed(self, step: StepKey) -> bool:
        """Return whether further requests of the step are refused."""
        return step in self._closed

    def forget(self) -> None:
        """Drop the steps whose tokens have expired."""
        now = self._clock()
        self._closed = {step: until for step, until in self._closed.items() if until > now}
        oldest = now - LONGEST_SECONDS
        self._steps = {step: requests for step, requests in self._steps.items() if requests.open or requests.used_at > oldest}

    def refuse_closed(self, step: StepKey) -> None:
        """Raise Refused (401) if the step is closed."""
        if step in self._closed:
            raise Refused(401, "the step of this token has ended")

    def count_model(self, step: StepKey, model: str) -> None:
        """Record that an open request of the step asks for this model. Raises Refused if the step has requested too many other
        models."""
        models = self._steps[step].models
        if model not in models and len(models) >= MAX_MODELS:
            raise Refused(429, f"this step has requested {MAX_MODELS} models, the most that a step may request")
        models.add(model)
        self._steps[step].last_model = model

    def last_model(self, step: StepKey) -> str:
        """Return the model that the step requested last, or "" if it has not requested any."""
        return self._steps[step].last_model

    def open_requests(self, step: StepKey) -> int:
        """Return how many requests of the step are open."""
        return len(self._tasks(step))

    @asynccontextmanager
    async def parsing(
        self, step: StepKey, size: int, sweep: str, waiting: AbstractAsyncContextManager[None], seconds: float | None = None
    ) -> AsyncIterator[None]:
        """Return a context in which an open request of the step parses its body, or a large part of its answer.

        The gateway serves no other request while it parses, which takes up to two seconds for 5 MB. So it parses the documents of
        one step one at a time, with a pause between two that is as long as the first one took. Documents of more than LARGE_BYTES
        bytes also wait for a turn: ParsingTurns.take explains ``sweep``, ``waiting`` and ``seconds``. Raises TimeoutError.
        """
        requests = self._steps[step]
        async with requests.parsing:
            await asyncio.sleep(max(0.0, requests.parsed_at + requests.parse_seconds - time.monotonic()))
            async with self._turns.take(sweep, waiting, seconds) if size > LARGE_BYTES else nullcontext():
                started = time.monotonic()
                try:
                    yield
                finally:
                    requests.parsed_at = time.monotonic()
                    requests.parse_seconds = requests.parsed_at - started

    @contextmanager
    def open_request(self, step: StepKey) -> Iterator[Callable[[int], None]]:
        """Count the current task as an open request of the step inside the context. Raises Refused if the step has too many.

        Yields a function that counts further bytes of the request's body. It raises Refused if the step's bodies have too many.
        """
        requests = self._steps.setdefault(step, _Step())
        requests.used_at = self._clock()
        if len(requests.open) >= MAX_OPEN:
            raise Refused(429, f"this step already has {MAX_OPEN} open requests")
        if requests.requests >= MAX_REQUESTS:
            raise Refused(429, f"this step has sent {MAX_REQUESTS} requests, the most that a step may send")
        requests.requests += 1
        task = asyncio.current_task()
        assert task is not None
        requests.open.add(task)
        held = 0

        def hold(count: int) -> None:
            nonlocal held
            held += count
            requests.bodies += count
            if requests.bodies > self._max_bodies:
                raise Refused(429, f"the bodies of this step's open requests have more than {self._max_bodies} bytes")

        try:
            yield hold
        finally:
            requests.bodies -= held
            requests.open.discard(task)
            if not requests.open and step in self._closed:
                self._steps.pop(step, None)

    async def wait(self, step: StepKey, seconds: float) -> None:
        """Wait for at most ``seconds`` until the step has no open request."""
        await _wait_for({*self._tasks(step)}, seconds)

    def abandon(self, step: StepKey) -> None:
        """Cancel the step's open requests. Otherwise, a process that the agent left running could keep their bodies in memory."""
        for task in self._tasks(step):
            task.cancel()

    async def wait_all(self, seconds: float) -> None:
        """Wait for at most ``seconds`` until no step has an open request."""
        await _wait_for({task for requests in self._steps.values() for task in requests.open}, seconds)

    def _tasks(self, step: StepKey) -> Collection[asyncio.Task[Any]]:
        requests = self._steps.get(step)
        return () if requests is None else requests.open


async def _wait_for(tasks: Collection[asyncio.Task[Any]], seconds: float) -> None:
    if tasks:
        await asyncio.wait(tasks, timeout=seconds)
