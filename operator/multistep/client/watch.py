"""Watches one trial or sweep."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any

from multistep.api.sweep.sweep import SweepStatus, parse_sweep_status
from multistep.api.trial.status import TrialStatus, is_finished
from multistep.api.trial.trial import parse_status
from multistep.client.connection import Cluster
from multistep.client.reconnecting_watch import WatchEvent
from multistep.errors import NotFound, Unavailable
from multistep.kube.cluster_protocols import Object
from multistep.kube.resources import SWEEPS, TRIALS, Resource

UNHEARD_SECONDS = 10.0
_UNHEARD = (
    "no operator has reconciled it yet: check that an operator runs (`kubectl get pods -A | grep multistep`) "
    "for this namespace and, if set, for the value of the label multistep.dev/shard"
)
_WORDS = {TRIALS.kind: "trial", SWEEPS.kind: "sweep"}


class Gone(NotFound):
    """Raised if a trial or sweep is deleted while it is watched."""


def _ignore(_: str) -> None:
    """Drop a hint: the default of ``note``."""


async def versions(
    cluster: Cluster, resource: Resource, namespace: str, name: str, note: Callable[[str], None] = _ignore, *, uid: str = ""
) -> AsyncGenerator[Object, None]:
    """Yield a trial or sweep, first in its current state, then after each change.

    note: called with a hint if no operator reconciles the object. uid: an object of this name with another UID is another object.
    Raises Gone if the object is deleted, ClusterError if a request fails.
    """
    status: dict[str, object] = {}
    events: AsyncGenerator[WatchEvent, None] = cluster.watch(resource, namespace, field_selector=f"metadata.name={name}")
    async with aclosing(events), _note_if_silent(lambda: bool(status.get("phase")), note):
        async for event in events:
            if event.type == "DELETED" or (uid and event.object["metadata"]["uid"] != uid):
                text = f"{_WORDS[resource.kind]} {name} in namespace {namespace} was deleted before it finished"
                raise Gone(text, status=404)
            status = event.object.get("status") or {}
            yield event.object


def status_of(resource: Resource, found: Object) -> TrialStatus | SweepStatus:
    """Return the status of a trial or a sweep."""
    return parse_status(found) if resource == TRIALS else parse_sweep_status(found)


async def until_finished(
    cluster: Cluster, resource: Resource, namespace: str, name: str, note: Callable[[str], None] = _ignore, *, uid: str = ""
) -> Object:
    """Wait until a trial or sweep has finished, and return it. Arguments and errors are those of ``versions``."""
    async with aclosing(versions(cluster, resource, namespace, name, note, uid=uid)) as found:
        async for each in found:
            if is_finished(status_of(resource, each)):
                return each
    raise Unavailable(f"the API server ended the watch of {_WORDS[resource.kind]} {name}")


@asynccontextmanager
async def _note_if_silent(received: Callable[[], bool], note: Callable[[str], None]) -> AsyncIterator[None]:
    """Call ``note`` with a hint if ``received()`` is still false after UNHEARD_SECONDS."""

    async def wait() -> None:
        await asyncio.sleep(UNHEARD_SECONDS)
        if not received():
            note(_UNHEARD)

    async with beside(wait()):
        yield


@asynccontextmanager
async def beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run a coroutine until the block ends."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
