"""Lists and watches: list the objects, then watch their changes; list again after a gap."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final, Literal

import aiohttp

from multistep.errors import ClusterError, Unavailable
from multistep.kube.protocols import Object
from multistep.kube.refusals import no_answer, refusal
from multistep.kube.requests import Http, pause_seconds
from multistep.kube.resources import Resource

PAGE_OBJECTS: Final = 500
WATCH_SECONDS: Final = 290  # timeoutSeconds of the request; load balancers often close connections after 300 s
MAX_FAILURES: Final = 8  # in succession: about half a minute with back-off
SHORT_SECONDS: Final = 5.0  # a watch that ends sooner is retried with back-off
MAX_SHORT: Final = 8  # pause_seconds reaches its maximum before this
GONE: Final = 410
METADATA_ONLY: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

EventType = Literal["ADDED", "MODIFIED", "DELETED"]


@dataclass(frozen=True)
class WatchEvent:
    """A change of an object. object: its current state; for a missed DELETED only apiVersion, kind and identifying metadata."""

    type: EventType
    object: Object


async def list_objects(
    http: Http, resource: Resource, namespace: str | None, selectors: Mapping[str, str]
) -> tuple[list[Object], str]:
    """Return all objects, with apiVersion and kind, and the list's resourceVersion. Reads page by page."""
    listed, version = await _list(http, resource, namespace, selectors)
    return [{"apiVersion": resource.api_version, "kind": resource.kind, **each} for each in listed], version


async def list_metadata(http: Http, resource: Resource, namespace: str | None, selectors: Mapping[str, str]) -> list[Object]:
    """Return the metadata of all objects: a fraction of their size."""
    listed, _ = await _list(http, resource, namespace, selectors, accept=METADATA_ONLY)
    return [each["metadata"] for each in listed]


async def _list(
    http: Http, resource: Resource, namespace: str | None, selectors: Mapping[str, str], *, accept: str = ""
) -> tuple[list[Object], str]:
    for _ in range(3):
        try:
            return await _list_pages(http, resource, namespace, selectors, accept)
        except ClusterError as error:
            if error.status != GONE:  # etcd compacted the list's version before the last page: list again
                raise
    return await _list_pages(http, resource, namespace, selectors, accept)


async def watch_objects(
    http: Http, resource: Resource, namespace: str | None, selectors: Mapping[str, str]
) -> AsyncGenerator[WatchEvent, None]:
    """Implement Client.watch. A watch that ends soon, and a repeated 410, are retried with back-off and jitter."""
    known: dict[str, Object] = {}  # by uid: identity and resourceVersion only
    version, failures, short, loop = "", 0, 0, asyncio.get_running_loop()
    while True:
        started = loop.time()
        try:
            if not version:
                objects, version = await list_objects(http, resource, namespace, selectors)
                for event in _differences(known, objects):
                    yield event
            async for type, object in _changes(http, resource, namespace, {**selectors, "resourceVersion": version}):
                failures, version = 0, object["metadata"]["resourceVersion"]
                if type != "BOOKMARK":
                    yield _noted(known, WatchEvent(type, object))
        except Unavailable:
            if (failures := failures + 1) >= MAX_FAILURES:
                raise
        except ClusterError as error:
            if error.status != GONE:
                raise
            version = ""
        short = min(short + 1, MAX_SHORT) if loop.time() - started < SHORT_SECONDS else 0
        if short:
            await asyncio.sleep(pause_seconds(short))


async def _list_pages(
    http: Http, resource: Resource, namespace: str | None, selectors: Mapping[str, str], accept: str
) -> tuple[list[Object], str]:
    objects: list[Object] = []
    version = ""
    async for page in _pages(http, resource, namespace, selectors, accept):
        objects += page["items"] or []  # an empty metadata list has null
        version = page["metadata"]["resourceVersion"]
    return objects, version


async def _pages(
    http: Http, resource: Resource, namespace: str | None, selectors: Mapping[str, str], accept: str = ""
) -> AsyncGenerator[Object, None]:
    params = {**selectors, "limit": str(PAGE_OBJECTS)}
    while True:
        page = await http.read("list", resource.plural, resource.path(namespace), params, accept=accept)
        yield page
        if not (more := page["metadata"].get("continue")):
            return
        params["continue"] = more


async def each_object(
    http: Http, resource: Resource, namespace: str | None, selectors: Mapping[str, str]
) -> AsyncGenerator[Object, None]:
    """Yield all objects, with one page in memory at a time. Raises ClusterError with status 410 if the caller reads too slowly."""
    async with aclosing(_pages(http, resource, namespace, selectors)) as pages:
        async for page in pages:
            for each in page["items"] or []:
                yield each


def _differences(known: dict[str, Object], objects: list[Object]) -> list[WatchEvent]:
    """Return the events missed since ``known``, by a new list. Updates ``known``."""
    gone = known.keys() - {each["metadata"]["uid"] for each in objects}
    events = [WatchEvent("DELETED", known[uid]) for uid in gone]
    for each in objects:
        before = known.get(each["metadata"]["uid"])
        if before is None:
            events.append(WatchEvent("ADDED", each))
        elif before["metadata"]["resourceVersion"] != each["metadata"]["resourceVersion"]:
            events.append(WatchEvent("MODIFIED", each))
    for event in events:
        _noted(known, event)
    return events


def _noted(known: dict[str, Object], event: WatchEvent) -> WatchEvent:
    uid = event.object["metadata"]["uid"]
    if event.type == "DELETED":
        known.pop(uid, None)
    else:
        known[uid] = _identity(event.object)
    return event


def _identity(object: Object) -> Object:
    names = ("name", "namespace", "uid", "resourceVersion")
    metadata = {name: object["metadata"][name] for name in names if name in object["metadata"]}
    return {"apiVersion": object.get("apiVersion"), "kind": object.get("kind"), "metadata": metadata}


async def _changes(
    http: Http, resource: Resource, namespace: str | None, params: Mapping[str, str]
) -> AsyncIterator[tuple[Any, Object]]:
    """Yield the events of one watch request, including bookmarks, until the server ends it."""
    path = resource.path(namespace)
    asked = {**params, "watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(WATCH_SECONDS)}
    limit = WATCH_SECONDS + http.timeout_seconds
    async with http.stream("watch", resource.plural, path, asked, silence_seconds=limit) as response:
        try:
            async for line in _lines(response.content):
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise refusal(f"watch {path}", event["object"].get("code", 500), json.dumps(event["object"]).encode(), {})
                yield event["type"], event["object"]
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise no_answer(f"watch {path}", error) from error


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Yield whole lines of any length. (aiohttp's readline has a limit that large objects exceed.)"""
    held: list[bytes] = []
    async for chunk in content.iter_any():
        first, *rest = chunk.split(b"\n")
        held.append(first)
        for part in rest:
            yield b"".join(held)
            held = [part]
