"""An in-memory cluster for the Python client: objects, and watches that report each change."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Self

from multistep.api.sweep.sweep import parse_sweep
from multistep.client.reconnecting_watch import WatchEvent
from multistep.engine.sweep.trial_manifests import plan_sweep
from multistep.errors import ClusterError, Conflict, NotFound
from multistep.kube.cluster_protocols import Object
from multistep.kube.resources import Resource
from tests.unit.cli.fakes import START, status

RULE = {"steps": 1, "strategy": "Mean"}


def scored(score: float) -> dict[str, Any]:
    """Return the status of a Complete trial of one step with this reward."""
    step = {"name": "only", "phase": "Complete", "rewards": {"reward": score}, "score": score, "passed": score >= 1}
    found = {"rewards": {"reward": score}, "score": score, "passed": score >= 1, "scoreRule": RULE}
    return status("Complete", step) | found | {"outcome": "Passed" if score >= 1 else "NotPassed"}


def excluded() -> dict[str, Any]:
    """Return the status of a trial that an infrastructure failure ended."""
    return status("Failed", outcome="Excluded") | {"failure": {"class": "Infrastructure", "reason": "PodDeleted"}}


class FakeCluster:
    """A fake with the methods of kube.client.ClusterClient that the Python client uses. patches: all patches, in order."""

    namespace = "default"

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], Object] = {}
        self.patches: list[Mapping[str, Any]] = []
        self.patch_fails: list[ClusterError] = []
        self.files: dict[str, bytes] = {}
        self.closed = False
        self.numbers: dict[tuple[str, str], int] = {}  # of trials, by sweep and the test's name
        self.aliases: dict[str, str] = {}  # the tests' names of trials, by the operator's
        self._watches: list[tuple[str, asyncio.Queue[WatchEvent | ClusterError]]] = []

    async def __aexit__(self, *_: object) -> None:
        self.closed = True

    def put(self, kind: str, name: str, **fields: Any) -> Object:
        """Create or change an object, and report it to the watches."""
        before = self.objects.get(
            (kind, name), {"kind": kind, "metadata": {"name": name, "namespace": "default", "uid": f"u-{name}"}}
        )
        self.objects[kind, name] = found = {**copy.deepcopy(before), **fields}
        self._report("MODIFIED", found)
        return found

    def trial(self, sweep: str, name: str, trial_status: Mapping[str, Any], agent: str = "a") -> None:
        """Create or change a trial of a sweep. name: its name for the test; the operator gives it another one (``aliases``)."""
        number, name = self._planned(sweep, name)
        owner = {
            "apiVersion": "multistep.dev/v1alpha1",
            "kind": "TrialSweep",
            "name": sweep,
            "uid": f"u-{sweep}",
            "controller": True,
        }
        self.objects["MultiStepTrial", name] = {
            "kind": "MultiStepTrial",
            "metadata": {
                "name": name,
                "namespace": "default",
                "uid": f"u-{name}",
                "labels": {"multistep.dev/sweep": sweep, "multistep.dev/number": str(number)},
                "annotations": {"multistep.dev/task": "t", "multistep.dev/agent": agent, "multistep.dev/attempt": "1"},
                "ownerReferences": [owner],
            },
            "spec": {"agent": {"name": "nop"}},
        }
        self.put("MultiStepTrial", name, status=dict(trial_status))

    def _planned(self, sweep: str, name: str) -> tuple[int, str]:
        """Return the number and the operator's name of a trial: the next of the sweep for a new name."""
        if ("TrialSweep", sweep) not in self.objects:
            return 0, name
        found = parse_sweep(self.objects["TrialSweep", sweep])
        names = plan_sweep(found, found.spec.tasks).names
        number = self.numbers.setdefault((sweep, name), sum(each == sweep for each, _ in self.numbers))
        self.aliases[names[number]] = name
        return number, names[number]

    def finish(self, sweep: str) -> None:
        """Finish a sweep."""
        self.put("TrialSweep", sweep, status=status("Complete", startTime=START))

    def remove(self, kind: str, name: str) -> None:
        self._report("DELETED", self.objects.pop((kind, name)))

    def break_watches(self, error: ClusterError) -> None:
        for _, queue in self._watches:
            queue.put_nowait(error)

    def _report(self, type: Any, found: Object) -> None:
        for kind, queue in self._watches:
            if kind == found["kind"]:
                queue.put_nowait(WatchEvent(type, copy.deepcopy(found)))

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Object:
        try:
            return self.objects[resource.kind, name]
        except KeyError:
            raise NotFound(f"{resource.kind} {name}", status=404, reason="NotFound") from None

    async def list_all(self, resource: Resource, namespace: str | None = None, *, label_selector: str = "") -> list[Object]:
        return [found for (kind, _), found in self.objects.items() if kind == resource.kind and _has(found, label_selector)]

    async def create(self, manifest: Mapping[str, Any]) -> Object:
        name = manifest["metadata"]["name"]
        if (manifest["kind"], name) in self.objects:
            raise Conflict("exists", status=409)
        return self.put(manifest["kind"], name, spec=manifest["spec"])

    async def apply(self, manifest: Mapping[str, Any]) -> Object:
        return self.put(manifest["kind"], manifest["metadata"]["name"])

    async def patch(self, resource: Resource, namespace: str | None, name: str, changes: Mapping[str, Any]) -> Object:
        if self.patch_fails:
            raise self.patch_fails.pop()
        self.patches.append(changes)
        found = await self.get(resource, namespace, name)
        if changes["metadata"]["uid"] != found["metadata"]["uid"]:
            raise Conflict("another uid", status=409)
        return self.put(resource.kind, name, spec={**found["spec"], **changes.get("spec", {})})

    async def delete(self, resource: Resource, namespace: str | None, name: str, *, uid: str = "") -> bool:
        self.remove(resource.kind, name)
        return True

    async def watch(
        self, resource: Resource, namespace: str | None = None, *, label_selector: str = "", field_selector: str = ""
    ) -> AsyncGenerator[WatchEvent, None]:
        queue: asyncio.Queue[WatchEvent | ClusterError] = asyncio.Queue()
        watch = resource.kind, queue
        for each in await self.list_all(resource, label_selector=label_selector):
            queue.put_nowait(WatchEvent("ADDED", each))
        self._watches.append(watch)
        try:
            while not isinstance(event := await queue.get(), Exception):
                if _has(event.object, label_selector) and field_selector in (
                    "",
                    f"metadata.name={event.object['metadata']['name']}",
                ):
                    yield event
            raise event
        finally:
            self._watches.remove(watch)

    async def raw_stream(self, path: str) -> AsyncGenerator[bytes, None]:
        if path not in self.files:
            raise NotFound(path, status=404)
        yield self.files[path]

    @classmethod
    def connecting(cls, cluster: Self) -> Any:
        """Return a function that replaces Client.connect and returns this cluster."""

        async def connect(**_: Any) -> FakeCluster:
            return cluster

        return connect


def _has(found: Object, selector: str) -> bool:
    label, _, value = selector.partition("=")
    return not selector or (found["metadata"].get("labels") or {}).get(label) == value
