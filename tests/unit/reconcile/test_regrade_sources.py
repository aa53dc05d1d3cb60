"""Test sources of regrades: with results in an object store, with evidence of another program, or not created yet."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime

import pytest

from multistep.api.trial import KIND
from tests.support.fake_volume import FakeResultsStore
from tests.support.world import FILES, START, World, manifest
from tests.unit.reconcile.test_regrade import ONE_STEP, REGRADE, ended, source


@pytest.mark.parametrize("deleted", [False, True], ids=["that exists", "that was deleted"])
async def test_a_source_whose_results_are_in_an_object_store_is_regraded(deleted: bool) -> None:
    of = await source(stored=True)
    assert of.trial["status"]["resultsStore"] and pickle.loads(of.results).files == {}, "the volume has its checkpoints only"
    world = World(trial=manifest(REGRADE, files={**FILES, **ONE_STEP}), source=of, stored=True)
    if deleted:
        world.cluster.remove(KIND, "default", "source")
    await world.run()
    assert world.condition[0] == "Complete" and ended(world.object["status"]) == ended(of.trial["status"]), world.errors
    stated = pickle.loads(of.shipped).evidence["predicate"]
    assert world.status.regraded is not None
    assert [each.tests for each in world.status.regraded.steps] == [
        {made["name"]: made["digest"]["sha256"] for made in each["tests"]} for each in stated["steps"]
    ]
    assert "trial-uid" not in world.volume.results, "the regrade keeps no checkpoints"  # type: ignore[union-attr]


@pytest.mark.parametrize("text", ["{", "[]", '{"predicate": {"steps": [{"name": "a"}]}}', '{"predicate": {"steps": 1}}'])
async def test_results_whose_evidence_another_program_wrote_are_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def part(*_: object, **__: object) -> bytes:
        return text.encode()

    monkeypatch.setattr(FakeResultsStore, "part", part)
    world = World(trial=manifest(REGRADE, files={**FILES, **ONE_STEP}), source=await source())
    world.cluster.remove(KIND, "default", "source")
    await world.run()
    assert world.condition[:2] == ("Failed", "RegradeImpossible") and world.errors == []
    assert "no kept results with evidence of exactly one deleted trial of this name" in world.condition[2]


async def test_a_source_that_is_created_later_is_awaited() -> None:
    """A manifest file may contain the regrade before its source, so the regrade may exist first."""
    made = manifest(REGRADE, files={**FILES, **ONE_STEP})
    made["metadata"]["creationTimestamp"] = datetime.fromtimestamp(START, UTC).isoformat()
    world = World(trial=made)
    await world.run(until=lambda: len(world.waits) > 1)
    assert world.condition[:2] == ("Reconciling", "SourceActive") and "trial source does not exist" in world.condition[2]
    (await source()).put_into(world)
    await world.run()
    assert world.condition[0] == "Complete"
