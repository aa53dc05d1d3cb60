"""A fake of Kueue that admits plain pods in one namespace of a real cluster.

The webhook, called over TLS, adds Kueue's label, finalizer and scheduling gate to each pod that names a queue.
The controller removes pods' scheduling gates while the queue has quota, highest priority first; it preempts lower priorities.
A pod uses quota until it has finished or is deleted. Tests read the fake's attributes instead of the status of Kueue's resources.
"""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from aiohttp import web

from localkube.config import load_config
from multistep.client.reconnecting_watch import WatchingClient
from multistep.errors import ClusterError, Conflict, NotFound
from multistep.kube.cluster_protocols import Object
from multistep.kube.resources import PODS
from tests.support.waiting import eventually

QUEUE = "kueue.x-k8s.io/queue-name"
PRIORITY = "kueue.x-k8s.io/priority-class"
MANAGED = "kueue.x-k8s.io/managed"  # used as a label and as a finalizer
GATE = {"name": "kueue.x-k8s.io/admission"}
PRIORITIES = {"high": 1}  # priority by priority class; it is 0 for all other classes


class Kueue:
    """The fake.

    quotas: maximum number of admitted pods, by queue. most: highest number of pods that were admitted at once, by queue.
    admitted: names of pods in order of admission.
    """

    def __init__(self, client: WatchingClient, namespace: str, quotas: Mapping[str, int]) -> None:
        self._client, self._namespace, self._quotas = client, namespace, quotas
        self._pods: dict[str, Object] = {}  # pods of the namespace by uid
        self.admitted: list[str] = []
        self.most: dict[str, int] = {}

    # -- the webhook

    async def mutate(self, request: web.Request) -> web.Response:
        """Answer the AdmissionReview of a pod's creation."""
        asked = (await request.json())["request"]
        labels = asked["object"]["metadata"].get("labels") or {}
        answer: Object = {"uid": asked["uid"], "allowed": True}
        if QUEUE in labels:
            changes = [
                {"op": "add", "path": f"/metadata/labels/{MANAGED.replace('/', '~1')}", "value": "true"},
                {"op": "add", "path": "/metadata/finalizers", "value": [MANAGED]},
                {"op": "add", "path": "/spec/schedulingGates", "value": [GATE]},
            ]
            answer |= {"patchType": "JSONPatch", "patch": base64.b64encode(json.dumps(changes).encode()).decode()}
        return web.json_response({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": answer})

    # -- the controller

    async def control(self) -> None:
        """Reconcile the queues whenever a pod changes."""
        async for event in self._client.watch(PODS, self._namespace, label_selector=MANAGED):
            pod = event.object
            if event.type == "DELETED":
                self._pods.pop(pod["metadata"]["uid"], None)
            else:
                self._pods[pod["metadata"]["uid"]] = pod
            with suppress(NotFound, Conflict):  # the pod changed meanwhile; another event follows
                if _over(pod) and event.type != "DELETED":
                    await self.release(pod)
                for queue, quota in self._quotas.items():
                    await self._serve(queue, quota)

    async def _serve(self, queue: str, quota: int) -> None:
        here = [each for each in self._pods.values() if each["metadata"]["labels"][QUEUE] == queue]
        waiting = sorted((each for each in here if _gated(each) and not _deleting(each)), key=_order)
        inside = [each for each in here if not _gated(each) and not _ended(each)]
        while waiting and len(inside) < quota:
            inside.append(await self._admit(waiting.pop(0)))
        self.most[queue] = max(self.most.get(queue, 0), len(inside))
        lower = [each for each in inside if waiting and _priority(each) < _priority(waiting[0])]
        if lower and not any(map(_deleting, inside)):
            await self._evict(max(lower, key=_order))

    async def _admit(self, pod: Object) -> Object:
        changed = await self._patch(pod, {"spec": {"schedulingGates": None}})
        self.admitted.append(pod["metadata"]["name"])
        return changed

    async def _evict(self, pod: Object) -> None:
        reported = {"type": "TerminationTarget", "status": "True", "reason": "WorkloadEvictedDueToPreempted"}
        condition = {**reported, "message": "Preempted to accommodate a higher priority Workload"}
        names = {"name": pod["metadata"]["name"], "namespace": self._namespace, "uid": pod["metadata"]["uid"]}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": names, "status": {"conditions": [condition]}}
        path, params = PODS.path(self._namespace, names["name"], "status"), {"fieldManager": "kueue", "force": "true"}
        await self._client._http.send("apply", PODS, path, params, body)
        await self._client.delete(PODS, self._namespace, names["name"], uid=names["uid"])
        pod["metadata"]["deletionTimestamp"] = "now"  # mark the pod as terminating until its watch event arrives

    async def release(self, pod: Object) -> None:
        """Remove the finalizer from a finished pod."""
        kept = [each for each in pod["metadata"].get("finalizers") or [] if each != MANAGED]
        if kept != (pod["metadata"].get("finalizers") or []):
            await self._patch(pod, {"metadata": {"finalizers": kept}})

    async def _patch(self, pod: Object, changes: Object) -> Object:
        metadata = {**changes.get("metadata", {}), "uid": pod["metadata"]["uid"]}
        found = await self._client.patch(PODS, self._namespace, pod["metadata"]["name"], {**changes, "metadata": metadata})
        self._pods[found["metadata"]["uid"]] = found
        return found


def _gated(pod: Object) -> bool:
    return GATE in (pod["spec"].get("schedulingGates") or [])


def _deleting(pod: Object) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp"))


def _ended(pod: Object) -> bool:
    return pod["status"].get("phase") in ("Succeeded", "Failed")


def _over(pod: Object) -> bool:
    return _deleting(pod) or _ended(pod)


def _priority(pod: Object) -> int:
    return PRIORITIES.get(pod["metadata"]["labels"].get(PRIORITY, ""), 0)


def _order(pod: Object) -> tuple[int, str, str]:
    return -_priority(pod), pod["metadata"]["creationTimestamp"], pod["metadata"]["name"]


@asynccontextmanager
async def kueue(client: WatchingClient, namespace: str, quotas: Mapping[str, int]) -> AsyncIterator[Kueue]:
    """Run the fake Kueue in a namespace; yield once the API server calls its webhook."""
    played = Kueue(client, namespace, quotas)
    with tempfile.TemporaryDirectory(prefix="multistep-kueue-") as directory:
        address = load_config().network.host_address  # the API server reaches this process at this address
        certificate, key = await _certificate(Path(directory), address)
        async with _serving(played, address, certificate, key) as url:
            configuration = _configuration(namespace, url, certificate)
            await client.create(configuration)
            control = asyncio.create_task(played.control())
            try:
                await _called(client, namespace, next(iter(quotas)))
                yield played
                assert not control.done(), control.exception()
            finally:
                control.cancel()
                name = configuration["metadata"]["name"]
                await client.delete(await client.resource_of(configuration), None, name)
                for pod in await client.list_all(PODS, namespace, label_selector=MANAGED):
                    with suppress(NotFound, Conflict):
                        await played.release(pod)


def _configuration(namespace: str, url: str, certificate: Path) -> Object:
    here = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    webhook: dict[str, Any] = {
        "name": "pods.kueue.example",
        "clientConfig": {"url": f"{url}/mutate", "caBundle": base64.b64encode(certificate.read_bytes()).decode()},
        "rules": [rule],
        "namespaceSelector": here,
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": f"kueue-{namespace}"},
        "webhooks": [webhook],
    }


@asynccontextmanager
async def _serving(played: Kueue, address: str, certificate: Path, key: Path) -> AsyncIterator[str]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    app = web.Application()
    app.router.add_post("/mutate", played.mutate)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, address, 0, ssl_context=context).start()
        yield f"https://{address}:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def _called(client: WatchingClient, namespace: str, queue: str) -> None:
    """Wait until the API server calls the new webhook."""
    metadata = {"name": "probe", "namespace": namespace, "labels": {QUEUE: queue}}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [{"name": "c", "image": "none"}]}}

    async def gated() -> bool:
        with suppress(ClusterError):  # the namespace's ServiceAccount may not exist yet
            return bool(_gated(await client.apply(pod, dry_run=True)))
        return False

    await eventually(gated)


async def _certificate(directory: Path, address: str) -> tuple[Path, Path]:
    """Create a self-signed certificate for an address; return the paths of the certificate and its key."""
    certificate, key = directory / "tls.crt", directory / "tls.key"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    command += ["-subj", "/CN=kueue", "-addext", f"subjectAltName=IP:{address}", "-keyout", str(key), "-out", str(certificate)]
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    _, output = await process.communicate()
    assert process.returncode == 0, output.decode()
    return certificate, key
