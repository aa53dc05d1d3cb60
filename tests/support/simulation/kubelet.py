"""A kubelet without containers: it registers a node, reports its pods as running, and connects exec sessions to simulated
runners."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import parse_qs, urlsplit

from localkube.config import Config, load_config
from localkube.pki import Pki
from multistep.client.reconnecting_watch import WatchingClient
from multistep.errors import ClusterError, Conflict, NotFound
from multistep.kube.resources import LEASES, PODS, Resource
from tests.support.simulation.spdy import LEAVING_SECONDS, ExecStreams

LABEL: Final = "multistep.dev/simulated"
NODES: Final = Resource("v1", "Node", "nodes", namespaced=False)
NO_IMAGE: Final = "/none:1"  # images whose names end like this cannot be pulled
NO_COMMAND: Final = 127  # exit code of a command that does not exist
START_SECONDS: Final = 120.0
RENEW_SECONDS: Final = 4.0
CLEANUP_SECONDS: Final = 1.0  # how long a kubelet takes to remove what is left of a pod whose containers have ended
POD_ADDRESS: Final = "10.200.0.1"  # nothing listens there

Object = dict[str, Any]


class Session(Protocol):
    """Serves one exec session with the runner of a pod, until stdin or the session ends."""

    async def __call__(self, pod: Object, streams: ExecStreams) -> None: ...


def placement(node: str) -> Object:
    """Return the pod spec fields that place a pod on this node only."""
    toleration = {"key": LABEL, "operator": "Equal", "value": node, "effect": "NoSchedule"}
    return {"nodeSelector": {LABEL: node}, "tolerations": [toleration]}


@dataclass
class Kubelet:
    """The kubelet of one node.

    session: serves exec sessions with runners; created, deleted: called with each new pod, and with each pod that is gone.
    """

    client: WatchingClient
    node: str
    session: Session
    created: Callable[[Object], object] = lambda _: None
    deleted: Callable[[Object], object] = lambda _: None
    _started: dict[str, Object] = field(default_factory=dict)  # by UID: the status of the pod as it was reported
    _sessions: dict[str, set[asyncio.Task[Any]]] = field(default_factory=dict)  # by UID of the pod
    _pods: dict[tuple[str, str], Object] = field(default_factory=dict)  # by namespace and name
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    @asynccontextmanager
    async def running(self, directory: Path) -> AsyncIterator[None]:
        """Run the kubelet, and yield when its node is ready. directory: where it writes its certificate."""
        config = load_config()
        context = await asyncio.to_thread(_tls, config, directory)
        address = config.network.host_address  # the API server reaches this process at this address
        server = await asyncio.start_server(self._serve, address, 0, ssl=context)
        try:
            await self.client.create(_node(self.node, address, server.sockets[0].getsockname()[1]))
            self.do(self._renew())
            self.do(self._watch())
            await self._until_ready()
            yield
        finally:
            server.close()
            for uid in [*self._sessions]:
                self._disconnect(uid)
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            for pod in await self.client.list_all(PODS, field_selector=f"spec.nodeName={self.node}"):
                await self.client.delete(PODS, pod["metadata"]["namespace"], pod["metadata"]["name"], grace_period_seconds=0)
            await self.client.delete(NODES, None, self.node)

    def do(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a task that ends with the kubelet at the latest."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def report_ready(self, pod: Object, ready: bool) -> None:
        """Report whether the pod's containers are ready."""
        uid = pod["metadata"]["uid"]
        while uid not in self._started:  # the start of the pod is being reported
            await asyncio.sleep(0.01)
        containers = [{**each, "ready": ready} for each in self._started[uid]["containerStatuses"]]
        self._started[uid] |= {"containerStatuses": containers, "conditions": _conditions(ready)}
        await self._report(pod, self._started[uid])

    async def end_container(self, pod: Object, code: int) -> None:
        """End the pod's container and all exec sessions with it, as if its first process had exited with this code."""
        ended = {"exitCode": code, "reason": "Error" if code else "Completed", "startedAt": _now(), "finishedAt": _now()}
        status = self._started[pod["metadata"]["uid"]]
        containers = [{**each, "ready": False, "state": {"terminated": ended}} for each in status["containerStatuses"]]
        status |= {"containerStatuses": containers, "conditions": _conditions(False), "phase": "Failed" if code else "Succeeded"}
        self._disconnect(pod["metadata"]["uid"])
        await self._report(pod, status)

    # -- the node

    async def _renew(self) -> None:
        lease = {"holderIdentity": self.node, "leaseDurationSeconds": 40}
        metadata = {"name": self.node, "namespace": "kube-node-lease"}
        while True:
            body = {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": metadata}
            with suppress(ClusterError):  # the API server may be unavailable
                await self.client.apply({**body, "spec": {**lease, "renewTime": _now()}}, field_manager="kubelet")
            await asyncio.sleep(RENEW_SECONDS)

    async def _until_ready(self) -> None:
        async with asyncio.timeout(START_SECONDS):
            while True:
                node = await self.client.get(NODES, None, self.node)
                if {each["key"] for each in node["spec"].get("taints") or []} <= {LABEL}:
                    return
                await asyncio.sleep(0.1)

    # -- pods

    async def _watch(self) -> None:
        while True:
            with suppress(ClusterError):
                async for event in self.client.watch(PODS, field_selector=f"spec.nodeName={self.node}"):
                    self._changed(event.type, event.object)
            await asyncio.sleep(0.2)

    def _changed(self, kind: str, pod: Object) -> None:
        metadata = pod["metadata"]
        place = metadata["namespace"], metadata["name"]
        former = self._pods.get(place)
        if former is not None and former["metadata"]["uid"] != metadata["uid"]:
            self._forget(former)
            former = None
        if kind == "DELETED":
            if former is not None:
                self._forget(former)
            return
        self._pods[place] = pod
        if former is None:
            self.created(pod)
        if metadata.get("deletionTimestamp") and not (former and former["metadata"].get("deletionTimestamp")):
            self.do(self._end(pod))
        elif former is None and pod["status"].get("phase") == "Pending":
            self.do(self._start(pod))

    def _forget(self, pod: Object) -> None:
        self._pods.pop((pod["metadata"]["namespace"], pod["metadata"]["name"]), None)
        self._started.pop(pod["metadata"]["uid"], None)
        self._disconnect(pod["metadata"]["uid"])
        self.deleted(pod)

    async def _start(self, pod: Object) -> None:
        status = _status(pod)
        self._started[pod["metadata"]["uid"]] = status
        await self._report(pod, status)

    async def _end(self, pod: Object) -> None:
        await asyncio.sleep(pod["metadata"].get("deletionGracePeriodSeconds", 0))  # runners ignore SIGTERM
        self._disconnect(pod["metadata"]["uid"])
        await asyncio.sleep(CLEANUP_SECONDS)
        with suppress(ClusterError):
            names = pod["metadata"]
            await self.client.delete(PODS, names["namespace"], names["name"], uid=names["uid"], grace_period_seconds=0)

    async def _report(self, pod: Object, status: Object) -> None:
        metadata = {key: pod["metadata"][key] for key in ("name", "namespace", "uid")}
        path = PODS.path(metadata["namespace"], metadata["name"], "status")
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": status}
        with suppress(NotFound, Conflict):
            await self.client._http.send("apply", PODS, path, {"fieldManager": "kubelet", "force": "true"}, body)

    def _disconnect(self, uid: str) -> None:
        for session in self._sessions.pop(uid, ()):
            session.cancel()

    # -- exec sessions

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                request = (await reader.readuntil(b"\r\n\r\n")).decode()
                session = asyncio.create_task(self._exec(request.split(" ")[1], reader, writer))
                await asyncio.wait([session])
                if not session.cancelled():
                    session.result()
        finally:
            writer.close()

    async def _exec(self, url: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        parts = urlsplit(url)
        words = parts.path.strip("/").split("/")
        pod = self._pods.get((words[1], words[2])) if len(words) == 4 and words[0] == "exec" else None
        if pod is None:
            writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 9\r\n\r\nnot found")
            return await writer.drain()
        writer.write(
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n"
            b"X-Stream-Protocol-Version: v4.channel.k8s.io\r\n\r\n"
        )
        sessions, session = self._sessions.setdefault(pod["metadata"]["uid"], set()), asyncio.current_task()
        assert session is not None
        sessions.add(session)
        query = parse_qs(parts.query)
        streams = ExecStreams(reader, writer, 1 + sum(each in query for each in ("input", "output", "error")))
        pump = asyncio.create_task(streams.pump())
        try:
            await asyncio.wait([pump, opened := asyncio.ensure_future(streams.opened.wait())], return_when=asyncio.FIRST_COMPLETED)
            opened.cancel()
            if query["command"][0].endswith("runner"):
                await self.session(pod, streams)
                streams.exit(0)
            else:
                streams.exit(NO_COMMAND)
            await streams.drain()
            await asyncio.wait([pump], timeout=LEAVING_SECONDS)
        finally:
            sessions.discard(session)
            pump.cancel()


def _status(pod: Object) -> Object:
    """Return the status of a pod whose containers run, or whose image cannot be pulled."""
    spec = pod["spec"]
    missing = [each["image"] for each in spec["containers"] if each["image"].endswith(NO_IMAGE)]
    if missing:
        waiting = {"reason": "ImagePullBackOff", "message": f'Back-off pulling image "{missing[0]}"'}
        containers = [{**_container(each), "ready": False, "state": {"waiting": waiting}} for each in spec["containers"]]
        return {"phase": "Pending", "startTime": _now(), "conditions": _conditions(False), "containerStatuses": containers}
    return {
        "phase": "Running",
        "startTime": _now(),
        "hostIP": POD_ADDRESS,
        "podIP": POD_ADDRESS,
        "podIPs": [{"ip": POD_ADDRESS}],
        "conditions": _conditions(True),
        "containerStatuses": [_container(each) for each in spec["containers"]],
        "initContainerStatuses": [_init_container(each) for each in spec.get("initContainers") or []],
    }


def _container(container: Object) -> Object:
    name, image = container["name"], container["image"]
    ids = {"imageID": f"simulated@sha256:{'1' * 64}", "containerID": f"simulated://{name}"}
    state = {"running": {"startedAt": _now()}}
    return {"name": name, "image": image, **ids, "ready": True, "started": True, "restartCount": 0, "state": state}


def _init_container(container: Object) -> Object:
    if container.get("restartPolicy") == "Always":
        return _container(container)
    ended = {"exitCode": 0, "reason": "Completed", "startedAt": _now(), "finishedAt": _now()}
    return {**_container(container), "started": False, "state": {"terminated": ended}}


def _conditions(ready: bool) -> list[Object]:
    ready_ones = [{"type": each, "status": str(ready)} for each in ("Ready", "ContainersReady")]
    return [{"type": "Initialized", "status": "True"}, *ready_ones]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _node(name: str, address: str, port: int) -> Object:
    times = {"lastHeartbeatTime": _now(), "lastTransitionTime": _now()}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "simulated", **times}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {LABEL: name, "kubernetes.io/hostname": name}},
        "spec": {"taints": [{"key": LABEL, "value": name, "effect": "NoSchedule"}]},
        "status": {
            "conditions": [ready],
            "addresses": [{"type": "InternalIP", "address": address}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
            "capacity": {"cpu": "10k", "memory": "10Ti", "pods": "10k"},
            "allocatable": {"cpu": "10k", "memory": "10Ti", "pods": "10k"},
        },
    }


def _tls(config: Config, directory: Path) -> ssl.SSLContext:
    """Return the context of a server whose certificate the API server accepts as a kubelet's."""
    pki = Pki(config.paths.pki)
    certificate, key = directory / "kubelet.crt", directory / "kubelet.key"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    command += ["-subj", "/CN=kubelet", "-addext", f"subjectAltName=IP:{config.network.host_address}"]
    command += ["-CA", str(pki.certificate(pki.ca)), "-CAkey", str(pki.key(pki.ca)), "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    return context
