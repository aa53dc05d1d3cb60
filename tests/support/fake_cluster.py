"""A cluster in memory that implements cluster_protocols.Cluster, with optimistic concurrency, owners and fake runners.

Every call passes a fault point (tests.support.faults) before it has an effect. A write passes a second fault point when it is
stored but the caller has no response yet.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from multistep.engine.plan.plan_services import CONTAINER_PREFIX
from multistep.errors import AlreadyExists, ClusterError, Conflict, NotFound, Unavailable
from multistep.kube.cluster_protocols import ExecStream, Object
from multistep.kube.resources import Resource
from multistep.pods import egress_sidecar
from multistep.pods.pod_facts import pod_facts
from tests.support.fake_runner import FakeRunner
from tests.support.fake_sidecar import SidecarStream
from tests.support.faults import Faults

T = TypeVar("T")
Key = tuple[str, str, str]  # kind, namespace, name
PAGE_OBJECTS = 5  # fewer than in a real page, so that lists have several pages


class Store:
    """The objects of a cluster, by (kind, namespace, name). on_change: receives every change, as a watch does."""

    def __init__(self, on_change: Callable[[str, Object], None]) -> None:
        self._on_change = on_change
        self.objects: dict[Key, Object] = {}
        self.writes: list[str] = []  # all write calls in order, such as "apply_status default/a"
        self._newest_version = self._newest_uid = 0

    def put(self, manifest: Mapping[str, Any]) -> Object:
        """Store an object, as another client's write does, with a new resourceVersion, and with a new uid if it has none."""
        stored = _copy(dict(manifest))
        metadata = stored.setdefault("metadata", {})
        metadata.setdefault("namespace", "default")
        if "uid" not in metadata:
            self._newest_uid += 1
            metadata["uid"] = f"uid-{self._newest_uid}"
        self._newest_version += 1
        metadata["resourceVersion"] = str(self._newest_version)
        known = _key(stored) in self.objects
        self.objects[_key(stored)] = stored
        self._on_change("MODIFIED" if known else "ADDED", stored)
        return _copy(stored)

    def remove(self, kind: str, namespace: str, name: str) -> None:
        """Delete the object and its dependents, as another client's delete does."""
        removed = self.objects.pop((kind, namespace, name))
        self._on_change("DELETED", removed)
        uid = removed["metadata"]["uid"]
        for key, each in list(self.objects.items()):
            if any(owner["uid"] == uid for owner in each["metadata"].get("ownerReferences", [])):
                self.remove(*key)

    def save(self) -> Any:
        """Return the stored objects and counters, which can be pickled, but not the fake runners."""
        return self.objects, self.writes, self._newest_version, self._newest_uid

    def restore(self, saved: Any) -> None:
        self.objects, self.writes, self._newest_version, self._newest_uid = saved

    def backup(self) -> bytes:
        """Return a copy of the store for ``restore_backup``."""
        return pickle.dumps(self.save(), pickle.HIGHEST_PROTOCOL)

    def restore_backup(self, copy: bytes) -> None:
        """Restore an older copy, as from an etcd backup: objects and resource versions are old, and no watch reports the change."""
        writes = self.writes
        self.restore(pickle.loads(copy))
        self.writes = writes

    def _find(self, kind: str, namespace: str, name: str) -> Object:
        try:
            return self.objects[kind, namespace, name]
        except KeyError:
            raise NotFound(f"{kind} {namespace}/{name} not found", status=404, reason="NotFound") from None

    def _list(self, kind: str, namespace: str | None, label_selector: str) -> list[Object]:
        wanted = [
            each.partition("=") for each in label_selector.split(",") if each
        ]  # each term is NAME=VALUE, NAME (the label with any value) or !NAME (without the label)
        return [
            _copy(each)
            for (its_kind, its_namespace, _), each in self.objects.items()
            if its_kind == kind
            and namespace in (None, its_namespace)
            and all(_is_labelled(each, name, value if sign else None) for name, sign, value in wanted)
        ]


class FakeCluster(Store):
    """A cluster in memory: its objects, its fake runners, and the calls of its clients.

    runners: fake runners by pod uid. make_runner: creates the runner of a pod. pods_run: whether pods run at once; if False, they
    stay Pending until ``run_pod``.
    """

    def __init__(
        self,
        *,
        make_runner: Callable[[Object], FakeRunner] | None = None,
        pods_run: bool = True,
        faults: Faults | None = None,
        on_change: Callable[[str, Object], None] = lambda _type, _object: None,
    ) -> None:
        super().__init__(on_change)
        self.faults = faults or Faults()
        self.events: list[Object] = []
        self.runners: dict[str, FakeRunner] = {}
        self.pods_run = pods_run
        self.deleted_by_uid: Sequence[str] = ()  # kinds whose objects are deleted by their UID only
        self.one_image = False  # whether separate verifiers have the agent's image
        self.services_down: Sequence[Object] = ()  # statuses of services' containers that are down, the same in all pods
        self._make_runner = make_runner or (lambda pod: FakeRunner(pod["metadata"]["uid"]))

    # -- calls for tests only

    def run_pod(self, namespace: str, name: str) -> FakeRunner:
        """Start the pod, as the kubelet does."""
        pod = self.objects["Pod", namespace, name]
        self.runners[pod["metadata"]["uid"]] = runner = self._make_runner(pod)
        runner.host.key = pod_facts(pod).host_key
        container_id = f"containerd://{name}"
        running = {"name": "main", "state": {"running": {}}, "imageID": self._image_id(name), "containerID": container_id}
        services = {"initContainerStatuses": [*self.services_down]} if self.services_down else {}
        self.set_pod_status(namespace, name, phase="Running", containerStatuses=[running], **services)
        return runner

    def _image_id(self, name: str) -> str:
        return image_id(name.partition("-v")[0] if self.one_image else name)

    def set_pod_status(self, namespace: str, name: str, **status: Any) -> None:
        pod = self.objects["Pod", namespace, name]
        self.put({**pod, "status": {**pod.get("status", {}), **status}})

    # -- calls of the protocol Cluster

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Object:
        self.faults.point(f"get {resource.kind} {namespace or 'default'}/{name}")
        return self._with_readiness(_copy(self._find(resource.kind, namespace or "default", name)))

    async def list_all(
        self, resource: Resource, namespace: str | None = None, *, label_selector: str = "", field_selector: str = ""
    ) -> list[Object]:
        found = [self._with_readiness(each) for each in self._listed(resource.kind, namespace, label_selector)]
        if field_selector:
            assert field_selector == "status.phase=Pending"
            found = [each for each in found if each["status"].get("phase") == "Pending"]
        return found

    async def list_metadata(self, resource: Resource, namespace: str | None = None, *, label_selector: str = "") -> list[Object]:
        return [each["metadata"] for each in self._listed(resource.kind, namespace, label_selector)]

    async def iterate(self, resource: Resource, namespace: str | None = None, *, label_selector: str = "") -> AsyncIterator[Object]:
        for number, each in enumerate(self._listed(resource.kind, namespace, label_selector)):
            if number % PAGE_OBJECTS == 0:
                self.faults.point(f"list {resource.kind}, a page")
            yield each

    async def apply_status(
        self, resource: Resource, namespace: str, name: str, *, uid: str, resource_version: str, status: Mapping[str, Any]
    ) -> Object:
        with self._write(f"apply_status {namespace}/{name}"):
            found = self._find(resource.kind, namespace, name)
            if (found["metadata"]["uid"], found["metadata"]["resourceVersion"]) != (uid, resource_version):
                raise Conflict(f"{name} was changed", status=409, reason="Conflict")
            if found.get("status") == status:  # as in a real API server, a write that changes nothing creates no new version
                return _copy(found)
            return self.put({**found, "status": status})

    async def patch(self, resource: Resource, namespace: str | None, name: str, changes: Mapping[str, Any]) -> Object:
        with self._write(f"patch {resource.kind} {namespace}/{name}"):
            found = _merge_patched(self._find(resource.kind, namespace or "default", name), changes)
            found["metadata"]["generation"] = found["metadata"].get("generation", 1) + 1
            return self.put(found)

    async def delete(
        self, resource: Resource, namespace: str | None, name: str, *, uid: str = "", grace_period_seconds: int | None = None
    ) -> bool:
        kind, namespace = resource.kind, namespace or "default"
        assert uid or kind not in self.deleted_by_uid, f"without a UID, this may delete another {kind} of that name"
        with self._write(f"delete {kind} {namespace}/{name}"):
            found = self.objects.get((kind, namespace, name))
            if found is None:
                return False
            if uid and found["metadata"]["uid"] != uid:
                raise Conflict(f"{kind} {name} has another uid", status=409, reason="Conflict")
            self.remove(kind, namespace, name)
            return True

    async def create(self, manifest: Mapping[str, Any], *, dry_run: bool = False) -> Object:
        kind, namespace, name = _key(manifest)
        if dry_run:
            self.faults.point(f"dry-run {kind} {namespace}/{name}")
            return dict(manifest)
        if kind == "Event":
            with self._write(f"create_event {manifest['reason']}"):
                self.events.append({key: manifest[key] for key in ("reason", "note", "type", "action")})
                return dict(manifest)
        with self._write(f"create {kind} {namespace}/{name}"):
            if (kind, namespace, name) in self.objects:
                raise AlreadyExists(f"{kind} {name} exists", status=409, reason="AlreadyExists")
            stored = self.put(manifest)
            if kind == "Pod":
                self.set_pod_status(namespace, name, phase="Pending")
                if self.pods_run:
                    self.run_pod(namespace, name)
                return self._with_readiness(_copy(self.objects["Pod", namespace, name]))
            return stored

    async def replace(self, manifest: Mapping[str, Any]) -> Object:
        kind, namespace, name = _key(manifest)
        with self._write(f"replace {kind} {namespace}/{name}"):
            if self._find(kind, namespace, name)["metadata"]["resourceVersion"] != manifest["metadata"]["resourceVersion"]:
                raise Conflict(f"{kind} {name} was changed", status=409, reason="Conflict")
            return self.put(manifest)

    async def open_exec(self, namespace: str, pod: str, container: str, argv: Sequence[str]) -> ExecStream:
        self.faults.point(f"open_exec {namespace}/{pod}")
        found = self._find("Pod", namespace, pod)
        runner = self.runners.get(found["metadata"]["uid"])
        if any(each["name"] == container for each in self.services_down):
            raise Unavailable(f"container not found ({container})", status=500)
        if runner is not None and container.startswith(CONTAINER_PREFIX):  # a service's container, whose runner has its own records
            runner = self.runners.setdefault(f"{found['metadata']['uid']}/{container}", self._make_runner(found))
        if runner is None or found["status"].get("phase") != "Running":
            raise ClusterError(f"pod {pod} does not run", status=400, reason="BadRequest")
        runner.faults = self.faults
        return SidecarStream(runner.sidecar, self.faults) if container == egress_sidecar.CONTAINER else runner.stream()

    async def logs(
        self, namespace: str, pod: str, container: str, *, tail_lines: int | None = None, limit_bytes: int | None = None
    ) -> AsyncIterator[bytes]:
        self.faults.point(f"logs {namespace}/{pod}")
        found = self._find("Pod", namespace, pod)
        if container not in [each["name"] for each in found["spec"].get("initContainers") or []]:
            raise ClusterError(f"container {container} is not valid for pod {pod}", status=400, reason="BadRequest")
        yield f"{container} printed this\n".encode()

    # -- helpers

    def _listed(self, kind: str, namespace: str | None, label_selector: str) -> list[Object]:
        self.faults.point(f"list {kind}")
        return self._list(kind, namespace, label_selector)

    @contextmanager
    def _write(self, what: str) -> Iterator[None]:
        self.faults.point(f"{what} before")
        self.writes.append(what)
        yield
        self.faults.point(f"{what} after")

    def _with_readiness(self, pod: Object) -> Object:
        """Return a pod with the Ready condition that the kubelet's readiness probe sets; return other objects unchanged."""
        if pod["kind"] != "Pod":
            return pod
        runner = self.runners.get(pod["metadata"]["uid"])
        ready = runner is not None and runner.ready and pod.get("status", {}).get("phase") == "Running"
        status = pod.get("status", {})
        conditions = [{"type": "Ready", "status": str(ready)}, *status.get("conditions", [])]
        return {**pod, "status": {**status, "conditions": conditions}}


def _merge_patched(under: Object, changes: Mapping[str, Any]) -> Object:
    """Return a copy of `under` with the changes merged into it (JSON Merge Patch, RFC 7386)."""
    merged = dict(under)
    for key, value in changes.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merge_patched(merged.get(key) or {}, value) if isinstance(value, Mapping) else value
    return merged


def _is_labelled(object: Object, name: str, value: str | None) -> bool:
    labels = object["metadata"].get("labels", {})
    if name.startswith("!"):
        return name[1:] not in labels
    return name in labels and value in (None, labels[name])


def _copy(value: T) -> T:
    """Return a deep copy; ten times as fast as copy.deepcopy."""
    copied: T = pickle.loads(pickle.dumps(value, pickle.HIGHEST_PROTOCOL))
    return copied


def _key(manifest: Mapping[str, Any]) -> Key:
    metadata = manifest["metadata"]
    return manifest["kind"], metadata.get("namespace") or "default", metadata["name"]


def image_id(pod_name: str) -> str:
    """Return the image ID that the kubelet reports for a pod: one for the agent's pods of all attempts, and another for each number
    of a separate verifier."""
    verifier = re.search(r"-v\d+", pod_name)
    return f"registry.example/image{verifier[0] if verifier else ''}@sha256:{'12' * 32}"
