"""An API server on loopback for real clients and the real operator: a FakeCluster behind HTTP, with configurable load.

Supports what the operator requests: discovery, get, list, watch, create, apply of a status, delete, and exec over a websocket.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml
from aiohttp import WSMsgType, web
from kubernetes.aio.client import Configuration

from multistep.api.trial.trial import KIND
from multistep.errors import ClusterError
from multistep.kube.client import ClusterClient
from multistep.kube.cluster_protocols import Object
from multistep.kube.connection import Connection
from multistep.kube.exec import V5
from multistep.kube.requests import ApiRequests
from multistep.kube.resources import KNOWN, LEASES, PODS, Resource, api_path
from tests.support.fake_cluster import FakeCluster
from tests.support.fake_runner import FakeStream

BY_PLURAL = {(api_path(each.api_version), each.plural): each for each in KNOWN.values()}


@dataclass
class Load:
    """The server's capacity, and the load that it measured. All times are in seconds.

    capacity: maximum number of concurrent requests; the server answers further requests with 429, and 1 request of 25 in any
    case, in bursts: how many it rejects must not depend on how fast this machine is.
    retry_after: the value of the Retry-After header.
    delay: maximum response time. start: maximum time until a created pod runs; with an event pods_may_run, after it is set.
    The other fields are measurements; in_flight includes rejected requests. completed: (namespace, name) of the trials that are
    Complete. pods_asked: the namespaces of requested pods, also of rejected requests, in their order.
    """

    capacity: int
    delay: float = 0.01
    start: float = 0.2
    pods_may_run: asyncio.Event | None = None
    retry_after: int = 1
    asked: list[float] = field(default_factory=list)
    refused_at: list[float] = field(default_factory=list)
    in_flight: int = 0
    max_in_flight: int = 0
    most_starting: int = 0
    execs: int = 0
    most_execs: int = 0
    watches: int = 0
    completed: set[tuple[str, str]] = field(default_factory=set)
    pods_asked: list[str] = field(default_factory=list)

    @property
    def refused(self) -> int:
        """Return the number of requests answered with 429."""
        return len(self.refused_at)

    @property
    def most_refused_per_second(self) -> int:
        """Return the largest number of requests answered with 429 within one second."""
        return max(Counter(map(int, self.refused_at)).values(), default=0)

    def takes_one(self) -> bool:
        """Return whether the server accepts a new request, which in_flight and asked already include."""
        return self.in_flight <= self.capacity and len(self.asked) % 500 >= 20


class ClusterServer:
    """The server's request handlers. cluster: the cluster to serve."""

    def __init__(self, cluster: FakeCluster, load: Load) -> None:
        self.cluster = cluster
        self.load = load
        self._watches: list[tuple[str, asyncio.Queue[bytes]]] = []
        self._later: set[asyncio.Task[None]] = set()
        cluster._on_change = self._report

    def _report(self, type: str, object: Object) -> None:
        key = (object["metadata"]["namespace"], object["metadata"]["name"])
        if object["kind"] == KIND and (object.get("status") or {}).get("phase") == "Complete":
            self.load.completed.add(key)
        line = json.dumps({"type": type, "object": object}).encode() + b"\n"
        for kind, queue in self._watches:
            if kind == object["kind"]:
                queue.put_nowait(line)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Handle any request."""
        parts = request.path.strip("/").split("/")
        depth = 2 if parts[0] == "api" else 3
        base, rest = "/" + "/".join(parts[:depth]), parts[depth:]
        if not rest:
            return web.json_response(_discovery(base))
        namespace = rest[1] if rest[0] == "namespaces" and len(rest) > 2 else None
        resource = BY_PLURAL[base, rest[2] if namespace else rest[0]]
        named = rest[3:] if namespace else rest[1:]
        if named[1:] == ["exec"]:
            return await self._exec(request, str(namespace), named[0])
        if request.query.get("watch"):
            return await self._watch(request, resource)
        if namespace is None:
            return web.json_response(await self._list(resource, None, request.query))
        if resource == LEASES:  # not limited: leases have their own priority level in a real API server
            return await self._answered(request, resource, namespace, named)
        return await self._bounded(request, resource, namespace, named)

    async def _bounded(self, request: web.Request, resource: Resource, namespace: str, named: list[str]) -> web.Response:
        """Answer a request, or reject it at once if the server is over its capacity, as API Priority and Fairness does."""
        load, now = self.load, time.monotonic()
        load.asked.append(now)
        if request.method == "POST" and resource == PODS and not named:
            load.pods_asked.append(namespace)
        load.in_flight += 1
        load.max_in_flight = max(load.max_in_flight, load.in_flight)
        try:
            takes_it = load.takes_one()
            if not takes_it:
                load.refused_at.append(now)
            await asyncio.sleep(random.uniform(0.0, load.delay))
            if not takes_it:
                return _failure(429, "TooManyRequests", "too many requests", {"Retry-After": str(load.retry_after)})
            return await self._answered(request, resource, namespace, named)
        finally:
            load.in_flight -= 1

    async def _answered(self, request: web.Request, resource: Resource, namespace: str, named: list[str]) -> web.Response:
        try:
            return web.json_response(await self._answer(request, resource, namespace, named))
        except ClusterError as error:
            return _failure(error.status, error.reason, str(error), {})

    async def _answer(self, request: web.Request, resource: Resource, namespace: str, named: list[str]) -> Object:
        cluster, kind = self.cluster, resource.kind
        body = await request.json() if request.can_read_body else {}
        match request.method, named:
            case "GET", [name]:
                return await cluster.get(resource, namespace, name)
            case "GET", []:
                return await self._list(resource, namespace, request.query)
            case "POST", []:
                body["metadata"].update(namespace=namespace, creationTimestamp=_now())
                made = await cluster.create(body)
                if kind == "Pod":
                    self._start_later(namespace, made["metadata"]["name"])
                return made
            case "PATCH", [name, "status"]:
                shown = body["metadata"]
                return await cluster.apply_status(
                    resource,
                    namespace,
                    name,
                    uid=shown["uid"],
                    resource_version=shown["resourceVersion"],
                    status=body["status"],
                )
            case "PUT", [_]:
                return await cluster.replace(body)
            case "DELETE", [name]:
                await cluster.get(resource, namespace, name)
                await cluster.delete(resource, namespace, name, uid=(body.get("preconditions") or {}).get("uid", ""))
                return {"kind": "Status", "status": "Success"}
        raise ClusterError(f"{request.method} {request.path} is not played here", status=405)

    async def _list(self, resource: Resource, namespace: str | None, query: Mapping[str, str]) -> Object:
        selectors = {"label_selector": query.get("labelSelector", ""), "field_selector": query.get("fieldSelector", "")}
        found = await self.cluster.list_all(resource, namespace, **selectors)
        names = {"apiVersion": resource.api_version, "kind": f"{resource.kind}List"}
        return {**names, "metadata": {"resourceVersion": "1"}, "items": found}

    async def _watch(self, request: web.Request, resource: Resource) -> web.StreamResponse:
        """Stream all later events. Clients miss no event, because they list and start to watch before any object exists."""
        response = web.StreamResponse()
        await response.prepare(request)
        queue: asyncio.Queue[bytes] = asyncio.Queue()
        self._watches.append((resource.kind, queue))
        self.load.watches += 1
        while True:
            await response.write(await queue.get())

    # -- pods

    def _start_later(self, namespace: str, name: str) -> None:
        pods = [each for (kind, _, _), each in self.cluster.objects.items() if kind == "Pod"]
        starting = sum((each.get("status") or {}).get("phase") == "Pending" for each in pods)
        self.load.most_starting = max(self.load.most_starting, starting)
        task = asyncio.create_task(self._start(namespace, name))
        self._later.add(task)
        task.add_done_callback(self._later.discard)

    async def _start(self, namespace: str, name: str) -> None:
        if self.load.pods_may_run:
            await self.load.pods_may_run.wait()
        await asyncio.sleep(random.uniform(0.0, self.load.start))
        self.cluster.run_pod(namespace, name)

    async def _exec(self, request: web.Request, namespace: str, pod: str) -> web.StreamResponse:
        try:
            stream = await self.cluster.open_exec(namespace, pod, "main", [])
        except ClusterError as error:
            return _failure(error.status, error.reason, str(error), {})
        socket = web.WebSocketResponse(protocols=(V5,), max_msg_size=2**24)
        await socket.prepare(request)
        self.load.execs += 1
        self.load.most_execs = max(self.load.most_execs, self.load.execs)
        assert isinstance(stream, FakeStream)
        answering = asyncio.create_task(_answers(stream, socket))
        try:
            async for message in socket:
                if message.type is WSMsgType.BINARY and message.data[:1] == b"\0":
                    await stream.send(message.data[1:])
                elif message.data == bytes((255, 0)):
                    await stream.send_eof()
        finally:
            self.load.execs -= 1
            answering.cancel()
        return socket

    async def close(self) -> None:
        """Cancel the starts of pods that are still Pending."""
        for task in self._later:
            task.cancel()
        await asyncio.gather(*self._later, return_exceptions=True)


async def _answers(stream: FakeStream, socket: web.WebSocketResponse) -> None:
    while data := await stream.receive():
        await socket.send_bytes(b"\1" + data)
    await socket.send_bytes(b'\3{"status":"Success"}')
    await socket.close()


def _discovery(base: str) -> Object:
    """Return the discovery document for /api, /apis or /apis/GROUP/VERSION."""
    if base == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if base == "/apis":
        versions = {each.api_version for each in KNOWN.values() if "/" in each.api_version}
        return {"kind": "APIGroupList", "groups": [_group(each) for each in sorted(versions)]}
    verbs = ["get", "list", "watch", "create", "patch", "delete"]
    return {
        "kind": "APIResourceList",
        "resources": [
            {
                "name": each.plural,
                "singularName": each.kind.lower(),
                "kind": each.kind,
                "namespaced": each.namespaced,
                "verbs": verbs,
            }
            for each in KNOWN.values()
            if api_path(each.api_version) == base
        ],
    }


def _group(api_version: str) -> Object:
    group, version = api_version.split("/")
    found = {"groupVersion": api_version, "version": version}
    return {"name": group, "versions": [found], "preferredVersion": found}


def _failure(status: int, reason: str, message: str, headers: dict[str, str]) -> web.Response:
    shown = {"kind": "Status", "status": "Failure", "code": status, "reason": reason, "message": message}
    return web.json_response(shown, status=status, headers=headers)


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def kubeconfig(url: str, path: Path) -> Path:
    """Write a kubeconfig for the server at this URL to `path`."""
    named: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "fake",
        "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "fake"}}],
        "clusters": [{"name": "fake", "cluster": {"server": url}}],
        "users": [{"name": "fake", "user": {"token": "none"}}],
    }
    path.write_text(yaml.safe_dump(named))
    return path


@asynccontextmanager
async def serve_cluster(cluster: FakeCluster, load: Load) -> AsyncIterator[str]:
    """Serve the cluster on loopback; yield the server's URL."""
    server = ClusterServer(cluster, load)
    app = web.Application(client_max_size=2**24)
    app.router.add_route("*", "/{path:.*}", server.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}"
    finally:
        await server.close()
        await runner.cleanup()


def client_of(url: str) -> ClusterClient:
    """Return a client of the server at this URL."""
    return ClusterClient(ApiRequests(Connection(Configuration(host=url), loader=None, namespace="default")))
