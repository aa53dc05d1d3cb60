"""A cluster with results and pods of deleted trials."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from multistep.api.common.base_model import API_VERSION
from multistep.api.trial.trial import KIND
from multistep.kube.cluster_protocols import Object
from multistep.reconcile.cluster.garbage_collector import OrphanRemoval
from multistep.settings import Settings
from multistep.store.files.trial_key import TrialKey
from multistep.store.results_volume import ResultsVolume
from multistep.telemetry.metrics import Metrics
from tests.support.fake_cluster import FakeCluster
from tests.support.world import START

NOW = START + 3600.0
KEEP = 600.0
RUNNING = {"phase": "Running", "attempt": 2, "podName": "t-2"}


class Scene:
    """A cluster and a results volume, with the garbage collector of both."""

    def __init__(self, root: Path, **settings: Any) -> None:
        self.cluster = FakeCluster()
        self.volume = ResultsVolume(root)
        self.metrics = Metrics()
        self.now = NOW
        settings = {"results_retention_seconds": KEEP, **settings}
        self.removal = OrphanRemoval(self.cluster, self.volume, Settings(**settings), self.metrics, clock=lambda: self.now)

    async def once(self, after: float = 0.0) -> None:
        self.now += after
        await self.removal.once()

    def trial(self, name: str = "t", namespace: str = "default", status: Object | None = None, uid: str = "") -> Object:
        metadata = {"name": name, "namespace": namespace, "uid": uid or f"{name}-uid"}
        task: Object = {"inline": {"config": {}}}
        found = {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": {"task": task}, "status": status or {}}
        return self.cluster.put(found)

    def pod(self, name: str, owner: str | None = "t", *, age: float = 600.0, labels: dict[str, str] | None = None) -> None:
        ours = {"app.kubernetes.io/managed-by": "multistep", "multistep.dev/trial": "t", "multistep.dev/role": "agent"}
        metadata: Object = {
            "name": name,
            "labels": {**ours, "multistep.dev/pod": name, **(labels or {})},
            "creationTimestamp": datetime.fromtimestamp(self.now - age, UTC).isoformat(),
        }
        if owner is not None:
            reference = {"apiVersion": API_VERSION, "kind": KIND, "name": owner, "uid": f"{owner}-uid", "controller": True}
            metadata["ownerReferences"] = [reference]
        self.cluster.put({"kind": "Pod", "metadata": metadata, "spec": {}, "status": {}})

    async def results(self, name: str = "t", namespace: str = "default", uid: str = "") -> TrialKey:
        key = TrialKey(namespace, name, uid or f"{name}-uid")
        await self.volume.finish(key, {"result.json": b"{}"})
        return key

    @property
    def pods(self) -> set[str]:
        return {name for kind, _, name in self.cluster.objects if kind == "Pod"}

    def removed(self, kind: str) -> float:
        return float(self.metrics.orphans_deleted.labels(kind)._value.get())
