"""Record all states of a namespace's objects from watches, so that tests can assert on the history and miss no state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self

from multistep.client.reconnecting_watch import WatchingClient
from multistep.errors import ClusterError
from multistep.kube.resources import EVENTS, PODS, SWEEPS, TRIALS, Resource

RECORDED = (TRIALS, SWEEPS, PODS, EVENTS)
_RETRY_SECONDS = 0.5  # pause before the restart of a watch that has ended

Object = dict[str, Any]


@dataclass(frozen=True)
class State:
    """An object as of one watch event. type: the event's type, ADDED, MODIFIED or DELETED."""

    kind: str
    type: str
    object: Object
    at: datetime = field(default_factory=lambda: datetime.now(UTC))

    def __str__(self) -> str:
        """Return the state as one line, for the error message of a wait that timed out."""
        status = self.object.get("status") or {}
        true = [each["type"] for each in status.get("conditions") or [] if each.get("status") == "True"]
        step = (status.get("steps") or [{}])[-1]
        facts = [status.get("phase", ""), step.get("name", ""), step.get("phase", ""), self.object.get("reason", ""), *true]
        return f"{self.at:%H:%M:%S.%f} {self.type} {' '.join(str(each) for each in facts if each)}"


class Recorder:
    """Records object states during its ``async with`` block. A watch that ends or expires (410) restarts with a new list."""

    def __init__(self, client: WatchingClient, namespace: str) -> None:
        self._client = client
        self._namespace = namespace
        self._states: list[State] = []
        self._changed = asyncio.Event()
        self._watches: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._watches = [asyncio.create_task(self._follow(resource)) for resource in RECORDED]
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for watch in self._watches:
            watch.cancel()
        await asyncio.gather(*self._watches, return_exceptions=True)

    @property
    def count(self) -> int:
        """Return the number of states recorded so far."""
        return len(self._states)

    def states(self, resource: Resource, name: str, *, since: int = 0, uid: str = "") -> list[State]:
        """Return the states of the object with this name, oldest first.

        Args:
            since: Number of states to skip.
            uid: If set, return the states of the object with this UID only.
        """
        return [each for each in self._states[since:] if each.kind == resource.kind and _is(each.object, name, uid)]

    async def after(self, count: int) -> None:
        """Wait until more states than `count` are recorded."""
        assert self._watches, "the recorder was not entered"
        while self.count <= count:
            changed = asyncio.create_task(self._changed.wait())
            try:
                ended, _ = await asyncio.wait([changed, *self._watches], return_when=asyncio.FIRST_COMPLETED)
            finally:
                changed.cancel()
            for each in ended - {changed}:
                each.result()  # raise the error that ended a watch task; a ClusterError does not end such a task

    async def first(
        self, resource: Resource, name: str, done: Callable[[Object], bool], *, since: int = 0, uid: str = ""
    ) -> Object:
        """Wait for a state of the object that satisfies `done`; return it. Skip deletions and the first `since` states."""
        while True:
            count = self.count
            for each in self.states(resource, name, since=since, uid=uid):
                if each.type != "DELETED" and is_so(done, each.object):
                    return each.object
            since = count
            await self.after(count)

    async def _follow(self, resource: Resource) -> None:
        while True:
            with suppress(ClusterError):  # the API server may be unavailable
                async with aclosing(self._client.watch(resource, self._namespace)) as events:
                    async for event in events:
                        self._record(State(resource.kind, event.type, event.object))
            await asyncio.sleep(_RETRY_SECONDS)

    def _record(self, state: State) -> None:
        self._states.append(state)
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


def is_so(done: Callable[[Object], bool], object: Object) -> bool:
    """Return whether an object satisfies `done`; return False if it lacks a field that `done` reads."""
    with suppress(KeyError, IndexError, StopIteration):
        return done(object)
    return False


def _is(object: Object, name: str, uid: str) -> bool:
    metadata = object["metadata"]
    return metadata["name"] == name and uid in ("", metadata.get("uid"))
