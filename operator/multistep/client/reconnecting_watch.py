"""Watches objects, and reconnects when a watch ends. After a gap in the watch events, the objects are listed again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import aiohttp

from multistep.errors import ClusterError, Unavailable
from multistep.kube.client import ClusterClient
from multistep.kube.cluster_protocols import Object
from multistep.kube.list_objects import GONE, Query
from multistep.kube.requests import pause_seconds, response_error
from multistep.kube.resources import Resource

WATCH_SECONDS: Final = 290  # timeoutSeconds of a watch, because load balancers often close connections after 300 s
MAX_FAILURES: Final = 8  # failures in a row after which the watch ends, which takes about half a minute with back-off
SHORT_SECONDS: Final = 5.0  # a watch that ends sooner is retried with back-off
MAX_SHORT: Final = 8  # maximum number of short watches in a row that count for the back-off

EventType = Literal["ADDED", "MODIFIED", "DELETED"]


@dataclass(frozen=True)
class WatchEvent:
    """A change of an object."""

    type: EventType
    object: Object
    """The object's current state. For a deletion that only a new list shows, it has only apiVersion, kind and identifying
    metadata."""


class WatchingClient(ClusterClient):
    """The client of the command line and the Python client. The operator needs no watch of its own: kopf watches."""

    async def watch(
        self, resource: Resource, namespace: str | None = None, *, label_selector: str = "", field_selector: str = ""
    ) -> AsyncGenerator[WatchEvent, None]:
        """Yield all objects (of a namespace, if given) as ADDED, then every change, without end.

        If a watch ends, the next one continues after the last event. If the API server no longer has the events that were missed
        (status 410), the objects are listed again: changed ones are yielded as MODIFIED, deleted ones as DELETED. A watch that ends
        soon, and a repeated 410, are retried with back-off and jitter. Raises Unavailable if MAX_FAILURES retries in a row fail.
        """
        query = Query(self._http, resource, namespace, label_selector, field_selector)
        known: dict[str, Object] = {}  # kind, names, UID and resourceVersion of each object, by UID
        version = ""
        failures = 0
        short = 0
        loop = asyncio.get_running_loop()
        while True:
            started = loop.time()
            try:
                if not version:
                    objects, version = await query.all()
                    for event in _differences(known, objects):
                        yield _remember(known, event)
                async for kind, changed in _changes(query, version):
                    failures = 0
                    version = changed["metadata"]["resourceVersion"]
                    if kind != "BOOKMARK":
                        yield _remember(known, WatchEvent(kind, changed))
            except Unavailable:
                failures += 1
                if failures >= MAX_FAILURES:
                    raise
            except ClusterError as error:
                if error.status != GONE:
                    raise
                version = ""
            short = min(short + 1, MAX_SHORT) if loop.time() - started < SHORT_SECONDS else 0
            if short:
                await asyncio.sleep(pause_seconds(short))


async def _changes(query: Query, version: str) -> AsyncIterator[tuple[Any, Object]]:
    """Yield the events of one watch request, including bookmarks, until the server ends it."""
    path = query.resource.path(query.namespace)
    asked = {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(WATCH_SECONDS)}
    params = {**query.selectors, "resourceVersion": version, **asked}
    limit = WATCH_SECONDS + query.http.timeout_seconds
    async with query.http.stream("watch", query.resource.plural, path, params, silence_seconds=limit) as response:
        async for line in _lines(response.content):
            event = json.loads(line)
            if event["type"] == "ERROR":
                raise response_error(f"watch {path}", event["object"].get("code", 500), json.dumps(event["object"]).encode(), {})
            yield event["type"], event["object"]


def _differences(known: Mapping[str, Object], objects: list[Object]) -> list[WatchEvent]:
    """Return missed events, which are the differences between the known objects and a new list."""
    versions = {uid: identity["metadata"]["resourceVersion"] for uid, identity in known.items()}
    listed = {item["metadata"]["uid"]: item for item in objects}
    events = [WatchEvent("DELETED", known[uid]) for uid in versions.keys() - listed.keys()]
    for uid, item in listed.items():
        if versions.get(uid) != item["metadata"]["resourceVersion"]:
            events.append(WatchEvent("MODIFIED" if uid in versions else "ADDED", item))
    return events


def _remember(known: dict[str, Object], event: WatchEvent) -> WatchEvent:
    metadata = event.object["metadata"]
    known.pop(metadata["uid"], None)
    if event.type != "DELETED":
        names = {name: metadata[name] for name in ("name", "namespace", "uid", "resourceVersion") if name in metadata}
        kind = {name: event.object.get(name) for name in ("apiVersion", "kind")}
        known[metadata["uid"]] = {**kind, "metadata": names}
    return event


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Yield whole lines of any length. aiohttp's readline has a limit that large objects exceed."""
    held: list[bytes] = []
    async for chunk in content.iter_any():
        first, *rest = chunk.split(b"\n")
        held.append(first)
        for part in rest:
            yield b"".join(held)
            held = [part]
