"""Each finished trial has a row in the history. tests/unit/reconcile/test_crashes.py kills the operator around the row's write."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from multistep.api.trial.trial import parse_status
from multistep.errors import NotFound, StoreError
from multistep.reconcile.trial.record_history import HistoryWriter
from multistep.store.history import History
from tests.support.fake_cluster import FakeCluster
from tests.support.fake_volume import FakeVolume
from tests.support.world import World
from tests.unit.reconcile.orphan_cases import Scene
from tests.unit.report.test_history import trial


def rows(world: World) -> list[dict[str, Any]]:
    assert isinstance(world.volume, FakeVolume)
    return [json.loads(line) for _, line in world.volume.history.lines.values()]


def status_follows_row(world: World) -> bool:
    written = world.faults.trace.index("volume history after")
    return any(point.startswith("apply_status") for point in world.faults.trace[written:])


async def test_a_complete_trial_has_a_row_before_its_status_says_so() -> None:
    world = World()
    await world.run()
    (row,) = rows(world)
    assert (row["uid"], row["state"], row["score"]) == ("trial-uid", "Complete", world.status.score)
    assert status_follows_row(world)


def unable_to_start() -> World:
    world = World()
    world.trial["spec"]["agent"] = {"name": "no-such-agent"}
    world.cluster.put(world.trial)
    return world


async def test_a_trial_that_could_not_start_has_a_row_before_its_status_says_so_as_it_may_be_deleted_then() -> None:
    world = unable_to_start()
    await world.run()
    (row,) = rows(world)
    assert (row["state"], row["score"], row["failure_class"]) == ("Failed", None, world.status.failure.class_)  # type: ignore[union-attr]
    assert status_follows_row(world)


async def test_a_trial_without_results_ends_although_its_row_cannot_be_written_yet() -> None:
    world = unable_to_start()
    assert isinstance(world.volume, FakeVolume)
    add, failing = world.volume.history.add, True

    async def full(*arguments: Any) -> None:
        if failing:
            raise StoreError("no space left on device")
        await add(*arguments)

    world.volume.history.add = full  # type: ignore[method-assign,assignment]
    for _ in range(3):
        await world.reconcile()
    assert (world.status.phase, rows(world)) == ("Failed", [])
    failing = False
    await world.run(first=600.0)
    assert [row["state"] for row in rows(world)] == ["Failed"]


class Sweeps(Scene):
    """A cluster with a sweep, and the writer of rows of its trials."""

    def __init__(self, root: Path, **spec: Any) -> None:
        super().__init__(root)
        self.history = History(self.volume)
        self.writer = HistoryWriter(self.cluster, self.history)
        sweep = {"kind": "TrialSweep", "metadata": {"name": "nightly", "namespace": "evals", "uid": "sweep-uid"}, "spec": spec}
        self.cluster.put({"apiVersion": "multistep.dev/v1alpha1", **sweep})

    async def row(self, found: dict[str, Any]) -> dict[str, Any]:
        await self.writer.record(found, parse_status(found), "2.1")
        row: dict[str, Any] = json.loads((await self.history.open_lines("evals")).splitlines()[-1])
        return row


@pytest.mark.parametrize(
    ("spec", "score", "dataset"),
    [
        ({}, 0.5, ""),
        ({"scoring": {"key": "style"}, "tasksFrom": {"dataset": {"name": "bench", "version": "1"}}}, 1.0, "bench@1"),
        ({"tasksFrom": {"dataset": {"name": "bench"}}}, 0.5, "bench"),
        ({"tasksFrom": {"git": {"url": "https://git.example/tasks"}}}, 0.5, "https://git.example/tasks"),
        ({"scoring": {"unknown": 1}, "tasksFrom": {"oci": {"image": "registry.example/tasks:1"}}}, 0.5, "registry.example/tasks:1"),
    ],
)
async def test_a_row_has_the_scoring_and_the_dataset_of_its_sweep(
    tmp_path: Path, spec: dict[str, Any], score: float, dataset: str
) -> None:
    scene = Sweeps(tmp_path, **spec)
    row = await scene.row(trial())
    assert (row["score"], row["dataset"], row["sweep_uid"]) == (score, dataset, "sweep-uid")
    scene.cluster.objects.clear()
    assert (await scene.row(trial()))["dataset"] == dataset  # from memory


async def test_a_deleted_or_replaced_sweep_leaves_the_default_scoring(tmp_path: Path) -> None:
    scene = Sweeps(tmp_path, scoring={"key": "style"})
    found = trial()
    found["metadata"]["ownerReferences"][0]["uid"] = "former-uid"
    assert (await scene.row(found))["score"] == 0.5
    scene.cluster.objects.clear()
    assert (await scene.row(trial()))["score"] == 0.5


async def test_a_proxys_404_is_no_deleted_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Sweeps(tmp_path)

    async def get(*_: object) -> object:
        raise NotFound("no such page", status=404)

    monkeypatch.setattr(scene.cluster, "get", get)
    with pytest.raises(NotFound):
        await scene.row(trial())


@pytest.mark.parametrize("uid", ["../../../../escaped", "", "x" * 200])
async def test_an_owner_reference_of_a_user_is_no_path(tmp_path: Path, uid: str) -> None:
    scene = Sweeps(tmp_path)
    found = trial()
    found["metadata"]["ownerReferences"][0]["uid"] = uid
    await scene.row(found)
    (group,) = await scene.history.groups()
    assert group.name == "trials-23"


async def test_rows_are_packed_and_stay_when_everything_else_is_deleted(tmp_path: Path) -> None:
    scene = Sweeps(tmp_path)
    scene.removal = replace(scene.removal, history=scene.history)
    await scene.row(trial())
    scene.now = 4e9
    await scene.once()
    await scene.once()
    assert await scene.history.open_lines("evals") == b""
    (pack,) = await scene.history.packs("evals")
    assert pack.name == "date=2026-11-30/sweep-uid-0.jsonl.gz"
    (address,) = [each for (kind, _, _), each in scene.cluster.objects.items() if kind == "ConfigMap"]
    assert address["data"]["url"].endswith(f"/history/evals/{scene.volume.access.history_token('evals')}")
    assert "ownerReferences" not in address["metadata"]


async def test_the_address_of_a_deleted_namespace_is_published_when_it_has_trials_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene, asked = Sweeps(tmp_path), list[str]()
    scene.removal = replace(scene.removal, history=scene.history)

    async def refuse(_: FakeCluster, manifest: dict[str, Any], **options: Any) -> dict[str, Any]:
        asked.append(manifest["metadata"]["namespace"])
        raise NotFound("namespace", status=404, reason="NotFound")

    await scene.row(trial())
    scene.now = 4e9
    with monkeypatch.context() as patch:
        patch.setattr(FakeCluster, "create", refuse)
        await scene.once()
        await scene.once()
    assert asked == ["evals"]
    await scene.row(trial())
    await scene.once()
    assert [kind for kind, _, _ in scene.cluster.objects if kind == "ConfigMap"] == ["ConfigMap"]


async def test_rows_beyond_the_retention_are_deleted(tmp_path: Path) -> None:
    scene = Sweeps(tmp_path)
    settings = scene.removal.settings.model_copy(update={"history_retention_seconds": 86400.0})
    scene.removal = replace(scene.removal, settings=settings, history=scene.history)
    await scene.row(trial())
    scene.now = 4e9
    await scene.once()
    assert await scene.history.packs("evals") == []


async def test_a_trial_waits_while_its_row_cannot_be_written() -> None:
    world = World()
    assert isinstance(world.volume, FakeVolume)
    add, fails = world.volume.history.add, True

    async def full(*arguments: Any) -> None:
        if fails:
            raise StoreError("no space left on device")
        await add(*arguments)

    world.volume.history.add = full  # type: ignore[method-assign,assignment]
    for _ in range(50):
        await world.reconcile()
        world.now += 60.0
    assert world.status.phase == "Running"
    fails = False
    await world.run(first=600.0)
    assert [row["state"] for row in rows(world)] == ["Complete"] == [world.status.phase]
