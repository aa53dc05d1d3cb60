"""The sweep against a cluster in memory and a real directory: what it removes, what it leaves, and races it must not lose."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from obstore.store import MemoryStore

from multistep.api.trial import API_VERSION, KIND
from multistep.cluster.edge import Object
from multistep.errors import ClusterError, NotFound, Unavailable
from multistep.metrics import Metrics
from multistep.reconcile.sweep import Sweep
from multistep.settings import Settings
from multistep.store.bucket import Bucket
from multistep.store.shipping import Shipping
from multistep.store.volume import TrialKey, Volume
from tests.support.fake_cluster import FakeCluster
from tests.support.world import KEY, SEPARATE, START, World, manifest

NOW = START + 3600.0
KEEP = 600.0
RUNNING = {"phase": "Running", "attempt": 2, "podName": "t-2"}


class Swept:
    """A cluster, a volume and a sweep over both."""

    def __init__(self, root: Path, **settings: Any) -> None:
        self.cluster = FakeCluster()
        self.volume = Volume(root)
        self.metrics = Metrics()
        self.now = NOW
        settings = {"results_retention_seconds": KEEP, **settings}
        self.sweep = Sweep(self.cluster, self.volume, Settings(**settings), self.metrics, clock=lambda: self.now)

    async def once(self, after: float = 0.0) -> None:
        self.now += after
        await self.sweep.once()

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
        return float(self.metrics.orphans_removed.labels(kind)._value.get())


@pytest.fixture
def swept(tmp_path: Path) -> Iterator[Swept]:
    found = Swept(tmp_path)
    yield found
    found.volume.close()


# -- pods


async def test_pods_that_no_trial_waits_for_are_removed_and_no_others(swept: Swept) -> None:
    swept.trial(status=RUNNING)
    swept.trial("over", status={**RUNNING, "phase": "Complete", "podName": "over-2"})
    for name in ("t-1", "t-2", "t-2-v0"):
        swept.pod(name)
    swept.pod("over-1", "over")
    swept.pod("over-2", "over")
    swept.pod("lost-1", None)
    swept.pod("gone-1", "gone")
    swept.pod("young-1", "gone", age=59)
    await swept.once()
    assert swept.pods == {"t-2", "over-2", "young-1"}
    assert swept.removed("pod") == 5


async def test_what_users_made_is_left_alone_whatever_labels_it_has(swept: Swept) -> None:
    swept.pod("theirs", None, labels={"multistep.dev/pod": "copied-from-1"})
    swept.pod("else", None, labels={"app.kubernetes.io/managed-by": "Helm"})
    await swept.once()
    assert swept.pods == {"theirs", "else"}


async def test_the_pods_of_a_namesake_are_told_apart_by_uid(swept: Swept) -> None:
    swept.trial(status={**RUNNING, "podName": "t-1"}, uid="second-uid")
    swept.pod("t-1")
    await swept.once()
    assert swept.pods == set()


async def test_a_trial_whose_spec_or_status_cannot_be_read_keeps_its_pods(swept: Swept) -> None:
    swept.cluster.put({**swept.trial(status=RUNNING), "spec": {"task": 3}})
    swept.trial("odd", status={"phase": 3})
    swept.pod("t-2")
    swept.pod("odd-1", "odd")
    await swept.once()
    assert swept.pods == {"t-2", "odd-1"}


async def test_a_pod_that_was_replaced_meanwhile_is_not_removed(swept: Swept, monkeypatch: pytest.MonkeyPatch) -> None:
    swept.pod("gone-1", "gone")
    get = swept.cluster.get_trial

    async def replaced(namespace: str, name: str) -> Object:
        swept.cluster.remove("Pod", "default", "gone-1")
        swept.pod("gone-1", "gone")
        return await get(namespace, name)

    monkeypatch.setattr(swept.cluster, "get_trial", replaced)
    await swept.once()
    assert swept.pods == {"gone-1"} and swept.removed("pod") == 0


async def test_one_that_cannot_be_removed_keeps_no_other_from_being(swept: Swept, monkeypatch: pytest.MonkeyPatch) -> None:
    swept.pod("a-1", "gone")
    swept.pod("b-1", "gone")
    swept.pod("c-1", "gone", labels={"multistep.dev/attempt": "no number"})
    delete = swept.cluster.delete_pod

    async def refused(namespace: str, name: str, **options: Any) -> bool:
        if name == "a-1":
            raise ClusterError("denied by a webhook", status=403)
        return await delete(namespace, name, **options)

    monkeypatch.setattr(swept.cluster, "delete_pod", refused)
    key = await swept.results("gone")
    await swept.once()
    assert swept.pods == {"a-1", "c-1"}
    assert (await swept.volume.trials())[key] == NOW


@pytest.mark.parametrize("error", [Unavailable("no answer"), NotFound("404 page not found", status=404)], ids=["away", "no CRD"])
async def test_when_nothing_is_known_of_trials_nothing_is_removed(
    swept: Swept, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    async def fail(*_: object) -> Any:
        raise error

    swept.pod("gone-1", "gone")
    key = await swept.results("gone")
    for call in ("get_trial", "list_trial_uids"):
        monkeypatch.setattr(swept.cluster, call, fail)
    for _ in range(3):
        await swept.once(after=KEEP)
    assert swept.pods == {"gone-1"} and await swept.volume.trials() == {key: None}


async def test_results_in_an_object_store_are_kept_as_long_and_removed_then(swept: Swept) -> None:
    shipped = Shipping(Bucket(MemoryStore(), "memory://"), swept.volume)
    now = datetime.now(UTC).timestamp()
    sweep = replace(swept.sweep, shipping=shipped, clock=lambda: now)
    swept.trial("there")
    there, gone = await swept.results("there"), await swept.results("gone")
    for key in (there, gone):
        await shipped.ship(key)
        await swept.volume.remove(key)
    await sweep.once()
    marks = await shipped.trials()
    assert marks[there] is None and marks[gone] is not None
    now += KEEP - 60.0
    await sweep.once()
    assert await shipped.exists(gone)
    now += 120.0
    await sweep.once()
    assert await shipped.trials() == {there: None} and not await shipped.exists(gone) and await shipped.exists(there)
    assert swept.removed("results") == 1


class SweptAround:
    """A cluster that is swept, with no grace at all, before and after each call of the reconciler."""

    def __init__(self, cluster: FakeCluster, sweep: Callable[[], Awaitable[None]]) -> None:
        self._cluster, self._sweep = cluster, sweep

    def __getattr__(self, name: str) -> Any:
        async def call(*arguments: Any, **options: Any) -> Any:
            await self._sweep()
            try:
                return await getattr(self._cluster, name)(*arguments, **options)
            finally:
                await self._sweep()

        return call


@pytest.mark.parametrize("options", [{}, {"user": 1000}, {"trial": manifest(config=SEPARATE)}], ids=["plain", "as root", "apart"])
async def test_a_trial_is_never_disturbed_however_often_it_is_swept(tmp_path: Path, options: dict[str, Any]) -> None:
    settings = Settings(sweep_grace_seconds=0, results_retention_seconds=0)
    volume, metrics, sweeps = Volume(tmp_path), Metrics(), 0

    async def sweep() -> None:
        nonlocal sweeps
        sweeps += 1
        await Sweep(world.cluster, volume, settings, metrics, clock=lambda: world.now + 1e9).once()

    world = World(**options, volume=volume, durations={"a/agent": 100.0}, wrap=lambda inner: SweptAround(inner, sweep))
    await world.run()
    calm = World(**options, durations={"a/agent": 100.0})
    await calm.run()
    assert sweeps > 50
    if not options:  # else a pod that is about to be removed may be removed by the sweep
        assert b"orphans_removed_total{" not in metrics.render()
    assert world.condition[0] == "Complete" and world.status.attempts == [] and world.status.rewards == calm.status.rewards
    assert list(await volume.trials()) == [TrialKey(*KEY, "trial-uid")]
    volume.close()


async def test_a_pod_that_a_stale_operator_made_goes_while_the_trial_goes_on(tmp_path: Path) -> None:
    world = World(durations={"a/agent": 1000.0})
    await world.run(until=lambda: world.status.current_step == "a")
    [(key, pod)] = [(key, each) for key, each in world.cluster.objects.items() if key[0] == "Pod"]
    stale = {**pod, "metadata": {**pod["metadata"], "name": "t-9", "uid": "stale"}}
    stale["metadata"]["labels"] = {**pod["metadata"]["labels"], "multistep.dev/pod": "t-9"}
    world.cluster.put(stale)
    volume = Volume(tmp_path)
    await Sweep(world.cluster, volume, Settings(), Metrics(), clock=lambda: world.now).once()
    assert world.pods == [key[2]]
    await world.run()
    assert world.condition[0] == "Complete" and world.status.attempts == []
    volume.close()


# -- results


async def test_results_outlive_their_trial_for_as_long_as_they_are_kept(swept: Swept) -> None:
    swept.trial(status=RUNNING)
    alive, gone = await swept.results(), await swept.results("gone")
    await swept.once()
    assert await swept.volume.trials() == {alive: None, gone: NOW}
    await swept.once(after=KEEP - 1)
    assert await swept.volume.trials() == {alive: None, gone: NOW}
    await swept.once(after=1)
    assert await swept.volume.trials() == {alive: None}
    assert swept.removed("results") == 1


async def test_results_are_kept_for_ever_unless_it_is_said_for_how_long(tmp_path: Path) -> None:
    swept = Swept(tmp_path, results_retention_seconds=None)
    gone = await swept.results()
    for _ in range(3):
        await swept.once(after=1e9)
    assert set(await swept.volume.trials()) == {gone}
    swept.volume.close()


async def test_a_restarted_operator_knows_since_when_a_trial_is_gone(swept: Swept, tmp_path: Path) -> None:
    await swept.results()
    await swept.once()
    again = Swept(tmp_path)
    await again.once(after=KEEP)
    assert await again.volume.trials() == {}
    again.volume.close()


async def test_two_trials_of_one_name_each_have_their_own_results(swept: Swept) -> None:
    swept.trial(uid="second")
    first, second = await swept.results(uid="first"), await swept.results(uid="second")
    await swept.once()
    await swept.once(after=KEEP)
    assert await swept.volume.trials() == {second: None}
    assert first not in await swept.volume.trials()


async def test_a_trial_that_came_back_begins_to_be_gone_anew(swept: Swept) -> None:
    """A cluster that was restored: the same uid."""
    key = await swept.results()
    await swept.once()
    swept.trial()
    await swept.once(after=KEEP)
    assert await swept.volume.trials() == {key: None}
    swept.cluster.remove(KIND, "default", "t")
    await swept.once(after=KEEP)
    assert await swept.volume.trials() == {key: NOW + 2 * KEEP}


@pytest.mark.parametrize("marked", [False, True])
async def test_a_list_that_forgets_a_trial_does_not_cost_its_results(
    swept: Swept, monkeypatch: pytest.MonkeyPatch, marked: bool
) -> None:
    async def stale(namespace: str | None = None) -> set[str]:
        return set()

    key = await swept.results()
    if marked:
        await swept.once()
    since = await swept.volume.trials()
    swept.trial()
    monkeypatch.setattr(swept.cluster, "list_trial_uids", stale)
    await swept.once(after=KEEP)
    assert await swept.volume.trials() == since and key in since


async def test_results_of_namespaces_that_are_not_watched_are_left_alone(tmp_path: Path) -> None:
    """Nothing is known of their trials."""
    swept = Swept(tmp_path, namespaces=["default", "b"])
    for namespace in ("default", "b", "c"):
        await swept.results(namespace=namespace)
    await swept.once()
    await swept.once(after=KEEP)
    assert {key.namespace for key in await swept.volume.trials()} == {"c"}
    swept.volume.close()


async def test_results_are_never_removed_within_the_grace_time(tmp_path: Path) -> None:
    swept = Swept(tmp_path, results_retention_seconds=0)
    await swept.results()
    await swept.once()
    await swept.once(after=59)
    assert len(await swept.volume.trials()) == 1
    await swept.once(after=1)
    assert await swept.volume.trials() == {}
    swept.volume.close()


async def test_litter_on_the_volume_is_deleted_when_it_is_old_and_free_space_is_measured(swept: Swept, tmp_path: Path) -> None:
    litter = tmp_path / ".spool-1"
    litter.write_bytes(b"x")
    os.utime(litter, (NOW - 59, NOW - 59))
    await swept.once()
    assert litter.exists() and swept.removed("file") == 0
    await swept.once(after=2)
    assert not litter.exists() and swept.removed("file") == 1
    assert swept.metrics.results_free._value.get() > 0


# -- again and again


async def test_it_sweeps_soon_after_the_start_and_then_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    swept = Swept(tmp_path, sweep_seconds=120)
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            raise asyncio.CancelledError

    monkeypatch.setattr("multistep.reconcile.sweep.asyncio.sleep", sleep)
    swept.pod("gone-1", "gone")
    with pytest.raises(asyncio.CancelledError):
        await swept.sweep.run()
    assert slept[0] <= 20 and all(90 <= each <= 150 for each in slept[1:])
    assert swept.pods == set()
    swept.volume.close()
