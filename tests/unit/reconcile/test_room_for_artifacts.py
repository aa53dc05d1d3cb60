"""Artifacts that a separate verifier gets depend neither on the results of other trials nor on those of lost attempts."""

from __future__ import annotations

from pathlib import Path

import pytest

from multistep.engine.journal.results_limits import Amount, ResultsLimits
from multistep.store.results_volume import ResultsVolume
from tests.support.fake_volume import FakeVolume
from tests.support.world import SEPARATE, World, manifest
from tests.unit.reconcile.scenarios import lose_pod
from tests.unit.reconcile.test_separate import created, ran


async def test_a_namespace_whose_other_trials_leave_no_room_for_artifacts_delays_the_verification() -> None:
    """Without the artifacts, the reward would depend on what other trials have stored."""
    volume = FakeVolume()
    volume.room_bytes = 0
    world = World(trial=manifest(config=SEPARATE), volume=volume)
    await world.run(until=lambda: len(world.errors) > 3)
    held = next(each for each in world.status.conditions if each.type == "Suspended")
    assert (held.status, held.reason) == ("True", "ResultsNotWritable") and "artifacts that the verifier needs" in held.message
    assert created(world) == ["t-1"]
    volume.room_bytes = 1 << 30
    await world.run()
    assert world.status.rewards == (await ran()).status.rewards
    assert all(step.artifacts and not step.artifacts.incomplete for step in world.status.steps)


async def test_artifacts_that_would_not_fit_without_other_trials_delay_nothing() -> None:
    volume = FakeVolume()
    volume.room_bytes = volume.room_alone_bytes = 0
    world = await ran(volume=volume)
    assert world.condition == ("Complete", "TrialComplete", "ran 3 steps") and world.errors == []
    assert all(step.artifacts and step.artifacts.incomplete for step in world.status.steps)


@pytest.mark.parametrize("policy", ["Never", "AfterStep"])
async def test_results_of_lost_attempts_take_no_room_from_artifacts_that_a_verifier_gets(tmp_path: Path, policy: str) -> None:
    limits = ResultsLimits(step=Amount(10_000, 100), trial=Amount(7000, 100), namespace=Amount(100_000, 1000))
    volume = ResultsVolume(tmp_path, limits=lambda _: limits)
    lost = {"durations": {"a/agent": 100.0, "b/verifier/verifier": 100.0}, "happens": {150.0: lose_pod}}
    two = {**SEPARATE, "steps": SEPARATE["steps"][:2]}
    files = {"/app/out": b"x" * 3000, "/logs/agent": {}}
    world = await ran(two, {"checkpoints": {"policy": policy}}, volume=volume, files=files, **lost)
    volume.close()
    assert world.condition[0] == "Complete" and [each.reason for each in world.status.attempts] == ["PodDeleted"]
    assert [step.artifacts and step.artifacts.incomplete for step in world.status.steps] == [None, None]
