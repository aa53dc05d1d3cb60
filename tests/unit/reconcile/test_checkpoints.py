"""With checkpoints, an attempt continues after the last finished step of the attempt before."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.support.fake_runner import FakeRunner
from tests.support.world import KEY, World, manifest

DURATIONS = {f"{step}/agent": 100.0 for step in "abc"}

CHECKPOINTS = {"checkpoints": {"policy": "AfterStep"}}


def world_of(**spec: Any) -> World:
    return World(trial=manifest({**CHECKPOINTS, "onAgentError": "Continue", **spec}), durations=DURATIONS)


async def at_step(world: World, name: str, attempt: int = 1) -> FakeRunner:
    """Run the trial until its agent works on a step; return the runner of its pod."""

    def works() -> bool:
        now = world.status
        return (now.attempt, now.current_step) == (attempt, name) and now.steps[-1].phase == "Agent"

    await world.run(until=works)
    assert (world.status.attempt, world.status.current_step) == (attempt, name), world.condition
    return world.runner


def lose_pod(world: World) -> None:
    (name,) = world.pods
    world.cluster.remove("Pod", KEY[0], name)


def agents(runners: Mapping[str, FakeRunner]) -> list[str]:
    """Return the ids of the agents' phases that all pods started."""
    return sorted(id for runner in runners.values() for id, count in runner.starts.items() for _ in range(count) if "/agent" in id)


async def test_an_attempt_continues_after_the_last_finished_step() -> None:
    undisturbed = world_of()
    await undisturbed.run()
    world = world_of()
    await at_step(world, "c")
    lose_pod(world)
    runner = await at_step(world, "c", attempt=2)
    resumed = world.status.resumed
    assert resumed is not None and (resumed.after, resumed.attempts) == ("b", [1, 1])
    assert [id for id in runner.restored if id.endswith("/agent")] == ["1/a/agent", "1/b/agent"]
    await world.run()
    assert world.condition == ("Complete", "TrialComplete", "ran 3 steps")
    assert world.status.rewards == undisturbed.status.rewards
    assert agents(world.cluster.runners) == ["1/a/agent", "1/b/agent", "1/c/agent", "2/c/agent"]
    assert [(step.name, step.checkpoint is not None) for step in world.status.steps] == [("a", True), ("b", True), ("c", False)]
    assert world.status.attempts[0].resumed is None
    assert set(world.kept.steps) == set(undisturbed.kept.steps)
    assert world.kept.checkpoints == {}, "they are deleted with the pod"


async def test_a_checkpoint_that_is_not_possible_is_reported_and_the_next_one_contains_the_step() -> None:
    world = world_of()
    runner = await at_step(world, "a")
    runner.unpackable = "TooLarge"
    runner = await at_step(world, "b")
    missing = world.status.steps[0].checkpoint
    assert missing is not None and missing.missing == "TooLarge: not possible"
    runner.unpackable = ""
    await at_step(world, "c")
    lose_pod(world)
    runner = await at_step(world, "c", attempt=2)
    assert [id for id in runner.restored if id.endswith("/agent")] == ["1/a/agent", "1/b/agent"]
    resumed = world.status.resumed
    assert resumed is not None and (resumed.after, resumed.attempts) == ("b", [1, 1])
    await world.run()
    assert world.condition[0] == "Complete"
    assert agents(world.cluster.runners) == ["1/a/agent", "1/b/agent", "1/c/agent", "2/c/agent"]


async def test_steps_of_several_attempts_are_kept() -> None:
    world = world_of()
    for attempt, step in enumerate("bc", 1):
        await at_step(world, step, attempt=attempt)
        lose_pod(world)
    await at_step(world, "c", attempt=3)
    resumed = world.status.resumed
    assert resumed is not None and resumed.attempts == [1, 2]
    await world.run()
    assert agents(world.cluster.runners) == ["1/a/agent", "1/b/agent", "2/b/agent", "2/c/agent", "3/c/agent"]
    assert [each.resumed and each.resumed.attempts for each in world.status.attempts] == [None, [1]]


def _lose_layer_of(step: int) -> Callable[[World], None]:
    def lose(world: World) -> None:
        commit, files = world.kept.checkpoints[1, step]
        world.kept.checkpoints[1, step] = (commit, {**files, "layer": b""})

    return lose


@pytest.mark.parametrize(("step", "resumed"), [(1, [1]), (0, None)])
async def test_instead_of_a_damaged_checkpoint_the_one_before_is_restored_and_the_attempt_says_so(
    step: int, resumed: list[int] | None
) -> None:
    world = world_of()
    await at_step(world, "c")
    _lose_layer_of(step)(world)
    lose_pod(world)
    await at_step(world, "b" if resumed else "a", attempt=2)
    assert (world.status.resumed and world.status.resumed.attempts) == resumed
    assert "the checkpoint after step 2 of attempt 1 is not used" in str(world.status.attempts[0].message)
    await world.run()
    assert world.condition[0] == "Complete"


async def test_a_checkpoint_that_cannot_be_restored_is_not_tried_again() -> None:
    world = world_of()
    await at_step(world, "c")
    commit, files = world.kept.checkpoints[1, 1]
    world.kept.checkpoints[1, 1] = (commit, {**files, "layer": b"[]"})
    lose_pod(world)
    await at_step(world, "b", attempt=3)
    reasons = [(each.reason, each.resumed and each.resumed.after) for each in world.status.attempts]
    assert reasons == [("PodDeleted", None), ("RestoreFailed", "b")]
    assert world.status.resumed is not None and world.status.resumed.after == "a"
    await world.run()
    assert world.condition[0] == "Complete"


async def test_a_released_trial_continues_after_its_last_finished_step() -> None:
    world = world_of(suspendPolicy="Release")
    await at_step(world, "b")
    world.change_trial(suspend=True)
    await world.reconcile()
    assert world.pods == []
    released = next(each for each in world.status.conditions if each.type == "Suspended")
    assert released.message == "no pod is retained; set spec.suspend to false to continue after step a, as attempt 2"
    world.change_trial(suspend=False)
    await at_step(world, "b", attempt=2)
    await world.run()
    assert agents(world.cluster.runners) == ["1/a/agent", "1/b/agent", "2/b/agent", "2/c/agent"]


async def test_without_checkpoints_an_attempt_starts_at_step_1() -> None:
    world = World(trial=manifest({"onAgentError": "Continue"}), durations=DURATIONS)
    await at_step(world, "b")
    lose_pod(world)
    await at_step(world, "a", attempt=2)
    assert world.status.resumed is None and world.status.attempts[0].steps[0].checkpoint is None
