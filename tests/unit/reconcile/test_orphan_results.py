"""Results of deleted trials are deleted after the retention period."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from multistep.api.trial.trial import KIND
from multistep.kube.cluster_protocols import Object
from multistep.kube.resources import Resource
from tests.unit.reconcile.orphan_cases import KEEP, NOW, RUNNING, Scene

# -- retention


async def test_results_outlive_their_trial_for_as_long_as_they_are_kept(scene: Scene) -> None:
    scene.trial(status=RUNNING)
    alive, gone = await scene.results(), await scene.results("gone")
    await scene.once()
    assert await scene.volume.trials() == {alive: None, gone: NOW}
    await scene.once(after=KEEP - 1)
    assert await scene.volume.trials() == {alive: None, gone: NOW}
    await scene.once(after=1)
    assert await scene.volume.trials() == {alive: None}
    assert scene.removed("results") == 1


async def test_results_are_kept_for_ever_unless_retention_is_set(tmp_path: Path) -> None:
    scene = Scene(tmp_path, results_retention_seconds=None)
    gone = await scene.results()
    for _ in range(3):
        await scene.once(after=1e9)
    assert set(await scene.volume.trials()) == {gone}
    scene.volume.close()


async def test_a_restarted_operator_knows_since_when_a_trial_is_gone(scene: Scene, tmp_path: Path) -> None:
    await scene.results()
    await scene.once()
    again = Scene(tmp_path)
    await again.once(after=KEEP)
    assert await again.volume.trials() == {}
    again.volume.close()


async def test_two_trials_of_one_name_each_have_their_own_results(scene: Scene) -> None:
    scene.trial(uid="second")
    first, second = await scene.results(uid="first"), await scene.results(uid="second")
    await scene.once()
    await scene.once(after=KEEP)
    assert await scene.volume.trials() == {second: None}
    assert first not in await scene.volume.trials()


async def test_a_trial_that_came_back_restarts_its_retention(scene: Scene) -> None:
    """After a restore of the cluster, the trial exists again with the same uid; its next deletion restarts the retention."""
    key = await scene.results()
    await scene.once()
    scene.trial()
    await scene.once(after=KEEP)
    assert await scene.volume.trials() == {key: None}
    scene.cluster.remove(KIND, "default", "t")
    await scene.once(after=KEEP)
    assert await scene.volume.trials() == {key: NOW + 2 * KEEP}


@pytest.mark.parametrize("marked", [False, True])
async def test_a_list_that_forgets_a_trial_does_not_cost_its_results(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, marked: bool
) -> None:
    async def stale(*_: Any, **__: Any) -> list[Object]:
        return []

    key = await scene.results()
    if marked:
        await scene.once()
    since = await scene.volume.trials()
    scene.trial()
    monkeypatch.setattr(scene.cluster, "list_metadata", stale)
    await scene.once(after=KEEP)
    assert await scene.volume.trials() == since and key in since


async def test_a_trial_is_read_again_only_when_it_changed(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[str] = []
    get = scene.cluster.get

    async def counted(resource: Resource, namespace: str, name: str) -> Object:
        reads.append(name)
        return await get(resource, namespace, name)

    monkeypatch.setattr(scene.cluster, "get", counted)
    scene.trial(status=RUNNING)
    scene.pod("t-2")
    for _ in range(3):
        await scene.once()
    assert reads == ["t"]
    scene.trial(status={**RUNNING, "podName": "t-3", "attempt": 3})
    await scene.once()
    assert reads == ["t", "t"] and scene.pods == set()


@pytest.mark.parametrize(("shard", "left"), [("", {"b-1"}), ("b", {"t-1"})])
async def test_only_what_is_of_its_shard_is_removed(tmp_path: Path, shard: str, left: set[str]) -> None:
    scene = Scene(tmp_path, shard=shard)
    scene.pod("t-1", "gone")
    scene.pod("b-1", "gone", labels={"multistep.dev/shard": "b"})
    await scene.once()
    assert scene.pods == left
    scene.volume.close()


async def test_what_a_trial_has_that_was_given_to_another_shard_is_left_alone(scene: Scene) -> None:
    """Pod and results were created while the trial belonged to this shard; now another shard's operator is responsible."""
    trial = scene.trial(status=RUNNING)
    trial["metadata"]["labels"] = {"multistep.dev/shard": "b"}
    scene.cluster.put(trial)
    scene.pod("t-2")
    key = await scene.results()
    for _ in range(3):
        await scene.once(after=KEEP)
    assert scene.pods == {"t-2"} and await scene.volume.trials() == {key: None}


async def test_results_of_namespaces_that_are_not_watched_are_left_alone(tmp_path: Path) -> None:
    """The operator does not list the trials of such namespaces, so it cannot know whether they still exist."""
    scene = Scene(tmp_path, namespaces=["default", "b"])
    for namespace in ("default", "b", "c"):
        await scene.results(namespace=namespace)
    await scene.once()
    await scene.once(after=KEEP)
    assert {key.namespace for key in await scene.volume.trials()} == {"c"}
    scene.volume.close()


async def test_results_are_never_removed_within_the_grace_time(tmp_path: Path) -> None:
    scene = Scene(tmp_path, results_retention_seconds=0)
    await scene.results()
    await scene.once()
    await scene.once(after=59)
    assert len(await scene.volume.trials()) == 1
    await scene.once(after=1)
    assert await scene.volume.trials() == {}
    scene.volume.close()


async def test_litter_on_the_volume_is_deleted_when_it_is_old_and_free_space_is_measured(scene: Scene, tmp_path: Path) -> None:
    litter = tmp_path / ".spool-1"
    litter.write_bytes(b"x")
    os.utime(litter, (NOW - 59, NOW - 59))
    await scene.once()
    assert litter.exists() and scene.removed("file") == 0
    await scene.once(after=2)
    assert not litter.exists() and scene.removed("file") == 1
    assert scene.metrics.results_free._value.get() > 0


# -- periodic runs of the garbage collector


async def test_it_starts_soon_after_the_start_and_then_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(tmp_path, orphans_seconds=120)
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            raise asyncio.CancelledError

    monkeypatch.setattr("multistep.reconcile.cluster.garbage_collector.asyncio.sleep", sleep)
    scene.pod("gone-1", "gone")
    with pytest.raises(asyncio.CancelledError):
        await scene.removal.run()
    assert slept[0] <= 20 and all(90 <= each <= 150 for each in slept[1:])
    assert scene.pods == set()
    scene.volume.close()
