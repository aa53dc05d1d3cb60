"""Test checkpoints that verifiers need when the space for checkpoints is used up: no trial waits for ever, no agent is blamed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from multistep.engine.journal.results_limits import NO_LIMIT, Amount, ResultsLimits
from multistep.kube.cluster_protocols import Object
from multistep.store.results_volume import ResultsVolume
from tests.support.fake_volume import FakeVolume
from tests.support.world import World, manifest
from tests.unit.reconcile.test_checkpoints import DURATIONS, agents, at_step, lose_pod

APART: dict[str, Any] = {"verifier": {"isolation": "Separate"}, "checkpoints": {"policy": "AfterStep", "maxBytes": 1000}}
ROOM = 250  # bytes: the checkpoints of two steps fit, a third one does not


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[ResultsVolume]:
    most = Amount(NO_LIMIT, NO_LIMIT)
    volume = ResultsVolume(tmp_path, checkpoint_limits=lambda _: ResultsLimits(most, most, Amount(ROOM, NO_LIMIT)))
    yield volume
    volume.close()


def trial(uid: str) -> Object:
    found = manifest({**APART, "onAgentError": "Continue"})
    return {**found, "metadata": {**found["metadata"], "uid": uid}}


async def until_it_waits(world: World) -> None:
    """Run the trial until it has finished or has to wait for space."""
    known = len(world.errors)
    await world.run(until=lambda: len(world.errors) > known)


async def test_trials_that_wait_for_each_others_room_all_end(volume: ResultsVolume) -> None:
    worlds = [World(trial=trial(f"trial-{number}"), volume=volume, durations=DURATIONS) for number in range(4)]
    for world in worlds[:2]:
        await at_step(world, "b")  # each trial now has a checkpoint, taken after step a
    for _ in range(len(worlds)):
        for world in worlds:
            if world.status.phase != "Complete":
                await until_it_waits(world)
    assert [world.condition for world in worlds] == [("Complete", "TrialComplete", "ran 3 steps")] * len(worlds)
    calm = World(trial=manifest(APART))
    await calm.run()
    assert all(world.status.rewards == calm.status.rewards for world in worlds)
    assert any(full for world in worlds for full, _ in asked(world)), "somebody gave up checkpoints"


def asked(world: World) -> list[tuple[bool, int]]:
    """Return for each requested checkpoint: whether it is full (has all changes since the image), and its maximum size in bytes."""
    requests = [each for runner in world.cluster.runners.values() for each in runner.requests]
    return [(each["full"], each["maxBytes"]) for each in requests if each["op"] == "checkpoint"]


async def with_checkpoints_given_up(attempt: int) -> World:
    """Return a trial whose checkpoints' files were deleted for lack of space in step b, and whose agent works on step c."""
    world = World(trial=trial("trial-uid"), durations=DURATIONS)
    await at_step(world, "b")
    if attempt == 2:
        lose_pod(world)
        await at_step(world, "b", attempt=2)
    assert isinstance(world.volume, FakeVolume)
    world.volume.checkpoint_bytes = 0
    await until_it_waits(world)
    world.volume.checkpoint_bytes = 1 << 30
    await at_step(world, "c", attempt=attempt)
    return world


@pytest.mark.parametrize("attempt", [1, 2])
async def test_an_attempt_continues_after_its_checkpoints_were_given_up_and_stores_all_its_steps_again(attempt: int) -> None:
    world = await with_checkpoints_given_up(attempt)
    lose_pod(world)
    runner = await at_step(world, "c", attempt=attempt + 1)
    ran = [f"{1 if step == 'a' else attempt}/{step}/agent" for step in "ab"]
    assert [each for each in runner.restored if each.endswith("/agent")] == ran
    await world.run()
    assert world.condition == ("Complete", "TrialComplete", "ran 3 steps")


async def test_without_its_checkpoints_an_attempt_that_is_lost_meanwhile_starts_again_at_step_1() -> None:
    world = World(trial=trial("trial-uid"), durations=DURATIONS)
    await at_step(world, "b")
    assert isinstance(world.volume, FakeVolume)
    world.volume.checkpoint_bytes = 0
    await until_it_waits(world)
    lose_pod(world)
    world.volume.checkpoint_bytes = 1 << 30
    await at_step(world, "a", attempt=2)
    assert "the checkpoint after step 1 of attempt 1 is not used: its layer is missing" in str(world.status.attempts[0].message)
    await world.run()
    assert agents(world.cluster.runners) == ["1/a/agent", "1/b/agent", "2/a/agent", "2/b/agent", "2/c/agent"]


async def test_all_changes_that_are_stored_again_may_have_the_maximum_of_each_step() -> None:
    world = await with_checkpoints_given_up(1)
    assert asked(world) == [(False, 1000), (True, 2000)], "no agent is blamed for the changes of two steps"


async def test_changes_that_only_the_trials_own_checkpoints_leave_no_room_for_are_not_the_agents_failure() -> None:
    world = World(trial=trial("trial-uid"), durations=DURATIONS)
    await at_step(world, "b")
    runner, *_ = world.cluster.runners.values()  # the runner of the agent's pod; the others are in verifiers' pods
    assert isinstance(world.volume, FakeVolume)
    runner.packed_bytes, world.volume.most_bytes = 600, 600
    await at_step(world, "c")
    assert world.status.steps[1].exception is None
