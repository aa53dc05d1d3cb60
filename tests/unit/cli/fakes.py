"""An in-memory cluster for the commands: objects, a watch that yields scripted statuses, and results behind the API's proxy."""

from __future__ import annotations

import copy
import io
import tarfile
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from multistep.client.options import Target
from multistep.client.reconnecting_watch import WatchEvent
from multistep.errors import AlreadyExists, ClusterError, Conflict, NotFound, Unavailable
from multistep.kube.cluster_protocols import Object
from multistep.kube.resources import Resource
from multistep.pods import pod_identity
from tests.support.fake_runner import FakeRunner

START = "2026-01-01T00:00:00Z"
RESULTS = "service://multistep/multistep-operator:8080/results/default/t.tar"
RESULTS_PATH = "/api/v1/namespaces/multistep/services/multistep-operator:8080/proxy/results/default/t.tar"


def status(
    phase: str, *steps: Mapping[str, Any], reason: str = "Because", message: str = "so it is", **fields: Any
) -> dict[str, Any]:
    """Return a trial's status as the operator writes it."""
    holds = {
        "Complete": phase == "Complete",
        "Failed": phase == "Failed",
        "Reconciling": phase not in ("Complete", "Failed"),
    }
    conditions = [
        {"type": type_, "status": str(value), "lastTransitionTime": START, "reason": reason, "message": message}
        for type_, value in holds.items()
    ]
    return {"phase": phase, "conditions": conditions, "steps": list(steps), **fields}


def step(name: str, phase: str = "Complete", **fields: Any) -> dict[str, Any]:
    """Return a step's status; by default the step is finished."""
    over = {"completionTime": START} if phase in ("Complete", "Failed") else {}
    return {"name": name, "phase": phase, "startTime": START, **over, **fields}


GOOD = status(
    "Complete",
    step("a", rewards={"reward": 1}, score=1.0, passed=True, gate=True),
    message="ran 1 step",
    rewards={"reward": 1.0},
    results=RESULTS,
    score=1.0,
    passed=True,
    outcome="Passed",
)
GATE = status(
    "Complete",
    step("a", rewards={"reward": 0}, score=0.0, passed=False, gate=False),
    message="stopped",
    rewards={"reward": 0.0},
    results=RESULTS,
    score=0.0,
    passed=False,
    outcome="GateNotMet",
)
RAISED = status(
    "Complete",
    step("a", "Failed", exception={"type": "AgentTimeoutError", "message": "too slow", "phase": "agent"}),
    message="ended after 1 step with AgentTimeoutError: too slow",
    results=RESULTS,
    score=0.0,
    passed=False,
    outcome="AgentError",
    failure={"class": "Agent", "reason": "AgentTimeoutError", "step": "a"},
)
FAILED = status(
    "Failed", reason="InvalidSpec", message="no image", outcome="Excluded", failure={"class": "Task", "reason": "InvalidSpec"}
)


def tar_of(files: Mapping[str, bytes]) -> bytes:
    """Return an uncompressed tar with these files."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


@dataclass
class CliCluster:
    """An in-memory cluster. story: statuses that the watch of any object yields; served: bodies of GET responses, by path, and logs
    of containers, by POD/CONTAINER; installed: whether the CRDs exist; replace_before_patch: whether patch finds another object
    of the same name."""

    story: Sequence[Mapping[str, Any]] = ()
    served: dict[str, bytes] = field(default_factory=lambda: {RESULTS_PATH: tar_of({"result.json": b"{}"})})
    installed: bool = True
    reachable: bool = True
    create_fails: Exception | None = None
    apply_fails: BaseException | None = None
    replace_before_patch: bool = False
    objects: dict[tuple[str, str], Object] = field(default_factory=dict)
    namespace: str = "default"
    missing_namespaces: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()  # kinds of objects (such as Secret) that the user may not create
    runners: dict[str, FakeRunner] = field(default_factory=dict)  # runners of exec sessions, by POD or POD/CONTAINER
    exec_fails: Exception | None = None
    command: Any = None  # if set, open_exec returns it instead of a fake runner's session
    ran: list[Sequence[str]] = field(default_factory=list)  # the commands for which open_exec returned ``command``

    def put(self, kind: str, name: str, **fields: Any) -> Object:
        """Store an object in namespace default and return it."""
        found = {"kind": kind, "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"}, **fields}
        self.objects[kind, name] = found
        return found

    def of(self, kind: str) -> list[Object]:
        """Return the stored objects of a kind."""
        return [each for (its, _), each in self.objects.items() if its == kind]

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Object:
        if not self.reachable:
            raise Unavailable("no answer")
        if not self.installed:
            raise NotFound("404 page not found", status=404)
        if not name:  # the path is then that of the list of objects
            return {"kind": f"{resource.kind}List", "metadata": {}, "items": self.of(resource.kind)}
        try:
            return self.objects[resource.kind, name]
        except KeyError:
            raise NotFound("not found", status=404, reason="NotFound") from None

    async def iterate(
        self, resource: Resource, namespace: str | None = None, *, label_selector: str = ""
    ) -> AsyncGenerator[Object, None]:
        if not self.installed:
            raise NotFound("404 page not found", status=404)
        label, _, value = label_selector.partition("=")
        for found in self.of(resource.kind):
            if not label or found["metadata"].get("labels", {}).get(label) == value:
                yield found

    async def apply(self, manifest: Mapping[str, Any], *, field_manager: str = "", dry_run: bool = False) -> Object:
        self._admit(manifest)
        if dry_run:
            return dict(manifest)
        if self.apply_fails:
            raise self.apply_fails
        return self._store(manifest)

    async def create(self, manifest: Mapping[str, Any], *, dry_run: bool = False) -> Object:
        self._admit(manifest)
        if dry_run:
            return dict(manifest)
        if self.create_fails:
            raise self.create_fails
        if (manifest["kind"], manifest["metadata"]["name"]) in self.objects:
            raise AlreadyExists("exists", status=409, reason="AlreadyExists")
        return self._store(manifest)

    async def patch(self, resource: Resource, namespace: str | None, name: str, changes: Mapping[str, Any]) -> Object:
        found = self.objects[resource.kind, name]
        uid = "another" if self.replace_before_patch else found["metadata"]["uid"]
        if changes["metadata"]["uid"] != uid:
            raise Conflict("another uid", status=409)
        found["spec"] |= changes["spec"]
        return found

    async def delete(self, resource: Resource, namespace: str | None, name: str, *, uid: str = "") -> bool:
        assert uid == self.objects[resource.kind, name]["metadata"]["uid"]
        return self.objects.pop((resource.kind, name), None) is not None

    async def watch(
        self, resource: Resource, namespace: str | None = None, *, label_selector: str = "", field_selector: str = ""
    ) -> AsyncGenerator[WatchEvent, None]:
        name = field_selector.removeprefix("metadata.name=")
        for each in self.story:
            found = {"kind": resource.kind, "metadata": {"name": name, "namespace": namespace}, "status": dict(each)}
            yield WatchEvent("DELETED" if each.get("phase") == "Deleted" else "MODIFIED", found)
        raise Unavailable("the watch ended")

    async def logs(
        self, namespace: str, pod: str, container: str, *, tail_lines: int | None = None, follow: bool = False
    ) -> AsyncGenerator[bytes, None]:
        if (found := self.served.get(f"{pod}/{container}")) is None:
            raise NotFound(f"pod {pod}", status=404, reason="NotFound")
        for line in found.splitlines(keepends=True)[-tail_lines if tail_lines else 0 :]:
            yield line

    async def raw_stream(self, path: str) -> AsyncGenerator[bytes, None]:
        if path not in self.served:
            raise NotFound(f"GET {path}", status=404)
        yield self.served[path]

    async def open_exec(self, namespace: str, pod: str, container: str, argv: Sequence[str], **options: Any) -> Any:
        if self.exec_fails:
            raise self.exec_fails
        if self.command is not None:
            self.ran.append(argv)
            return self.command
        try:
            return self.runners[pod if container == pod_identity.CONTAINER else f"{pod}/{container}"].stream()
        except KeyError:
            raise NotFound(f"pod {pod}", status=404, reason="NotFound") from None

    @asynccontextmanager
    async def connect(self, target: Target) -> AsyncIterator[CliCluster]:
        default = self.namespace
        self.namespace = target.namespace or default
        try:
            yield self
        finally:
            self.namespace = default

    def _admit(self, manifest: Mapping[str, Any]) -> None:
        """Reject denied kinds and missing namespaces, as the API server does, even in a dry run."""
        if manifest["kind"] in self.denied:
            raise ClusterError(f"{manifest['kind']} is forbidden", status=403, reason="Forbidden")
        namespace = manifest["metadata"]["namespace"]
        if namespace in self.missing_namespaces:
            raise NotFound(f'create: namespaces "{namespace}" not found (HTTP 404, NotFound)', status=404, reason="NotFound")

    def _store(self, manifest: Mapping[str, Any]) -> Object:
        stored = copy.deepcopy(dict(manifest))
        stored["metadata"].setdefault("uid", f"uid-{stored['metadata']['name']}")
        self.objects[stored["kind"], stored["metadata"]["name"]] = stored
        return stored
