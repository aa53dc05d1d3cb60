"""Lists objects, and watches their changes. After a gap in the watch events, the objects are listed again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import aiohttp

from multistep.errors import ClusterError, Unavailable
from multistep.kube.cluster_protocols import Object
from multistep.kube.requests import ApiRequests, pause_seconds, response_error
from multistep.kube.resources import Resource

PAGE_OBJECTS: Final = 500
LISTS: Final = 4  # maximum attempts to read a list. An attempt fails if etcd compacts the list's version before the last page
WATCH_SECONDS: Final = 290  # timeoutSeconds of a watch, because load balancers often close connections after 300 s
MAX_FAILURES: Final = 8  # failures in a row after which the watch ends, which takes about half a minute with back-off
SHORT_SECONDS: Final = 5.0  # a watch that ends sooner is retried with back-off
MAX_SHORT: Final = 8  # maximum number of short watches in a row that count for the back-off
GONE: Final = 410
METADATA_ONLY: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

EventType = Literal["ADDED", "MODIFIED", "DELETED"]


@dataclass(frozen=True)
class WatchEvent:
    """A change of an object."""

    type: EventType
    object: Object
    """The object's current state. For a deletion that only a new list shows, it has only apiVersion, kind and identifying
    metadata."""


@dataclass(frozen=True)
class Query:
    """The objects of a kind (of a namespace, if given) that match the selectors."""

    http: ApiRequests
    resource: Resource
    namespace: str | None
    label_selector: str = ""
    field_selector: str = ""
    accept: str = ""
    """Media type of lists, "" for JSON."""

    @property
    def selectors(self) -> dict[str, str]:
        named = {"labelSelector": self.label_selector, "fieldSelector": self.field_selector}
        return {name: value for name, value in named.items() if value}

    async def pages(self) -> AsyncGenerator[tuple[list[Object], str], None]:
        """Yield each page of the list as its objects, with apiVersion and kind, and the list's resourceVersion."""
        kind = {"apiVersion": self.resource.api_version, "kind": self.resource.kind}
        params, more = {**self.selectors, "limit": str(PAGE_OBJECTS)}, True
        while more:
            page = await self.http.read("list", self.resource, self.resource.path(self.namespace), params, accept=self.accept)
            params["continue"] = more = page["metadata"].get("continue", "")
            objects = [{**kind, **item} for item in page["items"] or []]  # items is null in an empty PartialObjectMetadataList
            yield objects, page["metadata"]["resourceVersion"]

    async def all(self, part: Callable[[Object], Object] = lambda whole: whole) -> tuple[list[Object], str]:
        """Return all objects, reduced to what ``part`` returns, and the list's resourceVersion. Only one page of whole objects is
        in memory at a time."""
        for attempt in range(1, LISTS + 1):
            try:
                parts: list[Object] = []
                latest = ""
                async for objects, version in self.pages():
                    parts += map(part, objects)
                    latest = version
                return parts, latest
            except ClusterError as error:
                if error.status != GONE or attempt == LISTS:
                    raise
        raise AssertionError("unreachable")

    async def watch(self) -> AsyncGenerator[WatchEvent, None]:
        """Yield all objects as ADDED, then every change, without end. Raises Unavailable if retries keep failing.

        After a gap, the objects are listed again. Objects that changed in the gap are yielded as MODIFIED, deleted ones as DELETED.
        A watch that ends soon, and a repeated 410, are retried with back-off and jitter.
        """
        known: dict[str, Object] = {}  # kind, names, UID and resourceVersion of each object, by UID
        version = ""
        failures = 0
        short = 0
        loop = asyncio.get_running_loop()
        while True:
            started = loop.time()
            try:
                if not version:
                    objects, version = await self.all()
                    for event in _differences(known, objects):
                        yield _remember(known, event)
                async for kind, changed in self._changes(version):
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

    async def _changes(self, version: str) -> AsyncIterator[tuple[Any, Object]]:
        """Yield the events of one watch request, including bookmarks, until the server ends it."""
        path = self.resource.path(self.namespace)
        asked = {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(WATCH_SECONDS)}
        params = {**self.selectors, "resourceVersion": version, **asked}
        limit = WATCH_SECONDS + self.http.timeout_seconds
        async with self.http.stream("watch", self.resource.plural, path, params, silence_seconds=limit) as response:
            async for line in _lines(response.content):
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise response_error(
                        f"watch {path}", event["object"].get("code", 500), json.dumps(event["object"]).encode(), {}
                    )
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
