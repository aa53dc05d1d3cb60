"""Garbage collection of orphans in an in-memory cluster and a real directory: what it deletes, and its races with reconciles."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from obstore.store import MemoryStore

from multistep.errors import ClusterError, NotFound, Unavailable
from multistep.kube.cluster_protocols import Object
from multistep.kube.resources import TRIALS, Resource
from multistep.pods import builder_pod
from multistep.reconcile.cluster.garbage_collector import OrphanRemoval
from multistep.settings import BuildSettings, Settings
from multistep.store.bucket.object_store import Bucket
from multistep.store.bucket.upload_results import ResultsUploader
from multistep.store.files.trial_key import TrialKey
from multistep.store.results_volume import ResultsVolume
from multistep.telemetry.metrics import Metrics
from tests.support.fake_cluster import FakeCluster
from tests.support.world import KEY, SEPARATE, World, manifest
from tests.unit.reconcile.orphan_cases import KEEP, NOW, RUNNING, Scene

# -- orphaned pods


async def test_pods_that_no_trial_waits_for_are_removed_and_no_others(scene: Scene) -> None:
    scene.trial(status=RUNNING)
    scene.trial("over", status={**RUNNING, "phase": "Complete", "podName": "over-2"})
    for name in ("t-1", "t-2", "t-2-v0"):
        scene.pod(name)
    scene.pod("over-1", "over")
    scene.pod("over-2", "over")
    scene.pod("lost-1", None)
    scene.pod("gone-1", "gone")
    scene.pod("young-1", "gone", age=59)
    await scene.once()
    assert scene.pods == {"t-2", "over-2", "young-1"}
    assert scene.removed("pod") == 5


async def test_objects_that_users_created_are_never_deleted_whatever_their_labels(scene: Scene) -> None:
    scene.pod("theirs", None, labels={"multistep.dev/pod": "copied-from-1"})
    scene.pod("else", None, labels={"app.kubernetes.io/managed-by": "Helm"})
    await scene.once()
    assert scene.pods == {"theirs", "else"}


async def test_builders_that_no_trial_waits_for_are_deleted_by_the_operator_that_created_them(scene: Scene, tmp_path: Path) -> None:
    builds = BuildSettings(registry="registry.example/builds", namespace="builders")
    one, other = (Settings(builds=builds, lease_namespace=name) for name in ("a", "b"))
    for id, settings in (("1" * 64, one), ("2" * 64, other)):
        pod = builder_pod.builder_manifest(id, "default/t", settings)
        pod["metadata"]["creationTimestamp"] = datetime.fromtimestamp(NOW - 601, UTC).isoformat()
        scene.cluster.put({**pod, "status": {}})
    await OrphanRemoval(scene.cluster, ResultsVolume(tmp_path), one, Metrics(), clock=lambda: NOW).once()
    assert scene.pods == {builder_pod.pod_name("2" * 64)}


async def test_the_pods_of_a_namesake_are_distinguished_by_uid(scene: Scene) -> None:
    scene.trial(status={**RUNNING, "podName": "t-1"}, uid="second-uid")
    scene.pod("t-1")
    await scene.once()
    assert scene.pods == set()


async def test_a_trial_whose_spec_or_status_cannot_be_read_keeps_its_pods(scene: Scene) -> None:
    scene.cluster.put({**scene.trial(status=RUNNING), "spec": {"task": 3}})
    scene.trial("odd", status={"phase": 3})
    scene.pod("t-2")
    scene.pod("odd-1", "odd")
    await scene.once()
    assert scene.pods == {"t-2", "odd-1"}


async def test_a_pod_that_was_replaced_meanwhile_is_not_removed(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.pod("gone-1", "gone")
    get = scene.cluster.get

    async def replaced(resource: Resource, namespace: str, name: str) -> Object:
        scene.cluster.remove("Pod", "default", "gone-1")
        scene.pod("gone-1", "gone")
        return await get(resource, namespace, name)

    monkeypatch.setattr(scene.cluster, "get", replaced)
    await scene.once()
    assert scene.pods == {"gone-1"} and scene.removed("pod") == 0


async def test_one_that_cannot_be_removed_keeps_no_other_from_being(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.pod("a-1", "gone")
    scene.pod("b-1", "gone")
    scene.pod("c-1", "gone", labels={"multistep.dev/attempt": "no number"})
    delete = scene.cluster.delete

    async def refused(resource: Resource, namespace: str, name: str, **options: Any) -> bool:
        if name == "a-1":
            raise ClusterError("denied by a webhook", status=403)
        return await delete(resource, namespace, name, **options)

    monkeypatch.setattr(scene.cluster, "delete", refused)
    key = await scene.results("gone")
    await scene.once()
    assert scene.pods == {"a-1"}
    assert (await scene.volume.trials())[key] == NOW


@pytest.mark.parametrize("error", [Unavailable("no answer"), NotFound("404 page not found", status=404)], ids=["away", "no CRD"])
async def test_when_nothing_is_known_of_trials_nothing_is_removed(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    async def fail(*_: object) -> Any:
        raise error

    scene.pod("gone-1", "gone")
    key = await scene.results("gone")
    list_metadata = scene.cluster.list_metadata

    async def without_trials(resource: Resource, *arguments: Any, **options: Any) -> Any:
        if resource == TRIALS:
            raise error
        return await list_metadata(resource, *arguments, **options)

    monkeypatch.setattr(scene.cluster, "list_metadata", without_trials)
    monkeypatch.setattr(scene.cluster, "get", fail)
    for _ in range(3):
        await scene.once(after=KEEP)
    assert scene.pods == {"gone-1"} and await scene.volume.trials() == {key: None}


async def test_results_in_an_object_store_are_kept_as_long_and_removed_then(scene: Scene) -> None:
    shipped = ResultsUploader(Bucket(MemoryStore(), "memory://"), scene.volume)
    now = datetime.now(UTC).timestamp()
    removal = replace(scene.removal, shipping=shipped, clock=lambda: now)
    scene.trial("there")
    there, gone = await scene.results("there"), await scene.results("gone")
    for key in (there, gone):
        await shipped.ship(key)
        await scene.volume.remove(key)
    await removal.once()
    marks = await shipped.results.trials()
    assert marks[there] is None and marks[gone] is not None
    now += KEEP - 60.0
    await removal.once()
    assert await shipped.results.exists(gone)
    now += 120.0
    await removal.once()
    assert (
        await shipped.results.trials() == {there: None}
        and not await shipped.results.exists(gone)
        and await shipped.results.exists(there)
    )
    assert scene.removed("results") == 1


class RemovedAround:
    """A cluster in which orphans are deleted, without grace period, before and after each API call that the reconciler makes."""

    def __init__(self, cluster: FakeCluster, remove: Callable[[], Awaitable[None]]) -> None:
        self._cluster, self._remove = cluster, remove

    def __getattr__(self, name: str) -> Any:
        async def call(*arguments: Any, **options: Any) -> Any:
            await self._remove()
            try:
                return await getattr(self._cluster, name)(*arguments, **options)
            finally:
                await self._remove()

        return call


@pytest.mark.parametrize("options", [{}, {"user": 1000}, {"trial": manifest(config=SEPARATE)}], ids=["plain", "as root", "apart"])
async def test_a_trial_is_never_disturbed_however_often_orphans_are_removed(tmp_path: Path, options: dict[str, Any]) -> None:
    settings = Settings(orphans_grace_seconds=0, results_retention_seconds=0)
    volume, metrics, rounds = ResultsVolume(tmp_path), Metrics(), 0

    async def remove() -> None:
        nonlocal rounds
        rounds += 1
        await OrphanRemoval(world.cluster, volume, settings, metrics, clock=lambda: world.now + 1e9).once()

    world = World(**options, volume=volume, durations={"a/agent": 100.0}, wrap=lambda inner: RemovedAround(inner, remove))
    await world.run()
    calm = World(**options, durations={"a/agent": 100.0})
    await calm.run()
    assert rounds > 40
    if not options:  # with options, the trial has several pods, and OrphanRemoval may delete an unused one
        assert metrics.orphans_deleted.labels("pod")._value.get() == metrics.orphans_deleted.labels("results")._value.get() == 0
    assert world.condition[0] == "Complete" and world.status.attempts == [] and world.status.rewards == calm.status.rewards
    assert list(await volume.trials()) == [TrialKey(*KEY, "trial-uid")]
    volume.close()


async def test_a_pod_that_a_stale_operator_created_goes_while_the_trial_continues(tmp_path: Path) -> None:
    world = World(durations={"a/agent": 1000.0})
    await world.run(until=lambda: world.status.current_step == "a")
    [(key, pod)] = [(key, each) for key, each in world.cluster.objects.items() if key[0] == "Pod"]
    stale = {**pod, "metadata": {**pod["metadata"], "name": "t-9", "uid": "stale"}}
    stale["metadata"]["labels"] = {**pod["metadata"]["labels"], "multistep.dev/pod": "t-9"}
    world.cluster.put(stale)
    volume = ResultsVolume(tmp_path)
    await OrphanRemoval(world.cluster, volume, Settings(), Metrics(), clock=lambda: world.now).once()
    assert world.pods == [key[2]]
    await world.run()
    assert world.condition[0] == "Complete" and world.status.attempts == []
    volume.close()
