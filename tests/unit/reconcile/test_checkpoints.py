"""With checkpoints, an attempt continues after the last finished step of the attempt before."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from multistep.errors import StreamLost
from tests.support.fake_runner import FakeRunner
from tests.support.fake_volume import FakeVolume
from tests.support.played import rewarded
from tests.support.world import CONFIG, FILES, KEY, World, manifest
from tests.unit.reconcile.scenarios import lose_pod as lose_pod_of

DURATIONS = {f"{step}/agent": 100.0 for step in "abc"}

SINGLE: Any = {"environment": {"docker_image": "img"}}
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
    """Return the ids of the agent phases that were started in these pods; an id occurs once for each start."""
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


def _empty_layer_of(step: int) -> Callable[[World], None]:
    def empty_layer(world: World) -> None:
        commit, files = world.kept.checkpoints[1, step]
        world.kept.checkpoints[1, step] = (commit, {**files, "layer": b""})

    return empty_layer


@pytest.mark.parametrize(("step", "resumed"), [(1, [1]), (0, None)])
async def test_instead_of_a_damaged_checkpoint_the_one_before_is_restored_and_the_attempt_says_so(
    step: int, resumed: list[int] | None
) -> None:
    world = world_of()
    await at_step(world, "c")
    _empty_layer_of(step)(world)
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


async def test_restores_that_fail_use_up_no_retry_and_after_two_the_trial_starts_at_step_1() -> None:
    world = world_of(infrastructureRetries=1)
    await at_step(world, "c")
    for id, (commit, files) in world.kept.checkpoints.items():
        world.kept.checkpoints[id] = (commit, {**files, "layer": b"[]"})
    lose_pod(world)
    await at_step(world, "a", attempt=4)
    assert [each.reason for each in world.status.attempts] == ["PodDeleted", "RestoreFailed", "RestoreFailed"]
    assert "2 checkpoints could not be restored, so the next attempt starts at step 1" in str(world.status.attempts[-1].message)
    assert world.status.resumed is None
    await world.run()
    assert world.condition[0] == "Complete" and world.status.rewards is not None


@pytest.mark.parametrize(
    "exit", [{"exitCode": 1, "reason": "Error"}, {"exitCode": 137, "reason": "OOMKilled"}], ids=["stopped from inside", "memory"]
)
async def test_a_container_that_ends_after_the_restore_and_before_the_next_step_is_the_checkpoints_fault(
    exit: dict[str, Any],
) -> None:
    durations = {**DURATIONS, "/healthcheck": 50.0}
    world = World(trial=manifest({**CHECKPOINTS, "infrastructureRetries": 1, "onAgentError": "Continue"}), durations=durations)
    await at_step(world, "c")
    lose_pod(world)
    await world.run(until=lambda: world.status.attempt == 2 and world.status.phase == "Running")
    assert world.condition[2] == "restoring the environment after step b"
    world.pod_status(phase="Failed", containerStatuses=[{"name": "main", "state": {"terminated": exit}}])
    await at_step(world, "b", attempt=3)
    last = world.status.attempts[-1]
    assert last.reason == "RestoreFailed" and str(last.message).startswith("after the restore: the trial's container ended")
    await world.run()
    assert world.condition[0] == "Complete"


@pytest.mark.parametrize("code", ["DiskFull", "NoBase", "Protocol", "Unreadable", "Internal"])
async def test_no_refusal_of_a_checkpoint_ends_an_attempt(code: str) -> None:
    world = world_of()
    runner = await at_step(world, "a")
    runner.unpackable = code
    await world.run()
    assert world.condition == ("Complete", "TrialComplete", "ran 3 steps")
    shown = [each.checkpoint and each.checkpoint.missing for each in world.status.steps]
    assert shown == [f"{code}: not possible"] * 2 + [None]


@pytest.mark.parametrize("code", ["Conflict", "Body"])
async def test_a_checkpoint_that_a_lost_session_left_behind_is_waited_for(code: str) -> None:
    world = world_of()
    runner = await at_step(world, "a")
    runner.unpackable = code
    await world.run(until=lambda: len(world.errors) > 6)
    assert {type(each) for each in world.errors} == {StreamLost}, "it is no violation of the protocol"
    runner.unpackable = ""
    await world.run()
    assert world.condition[0] == "Complete" and world.status.attempts == []
    assert all(each.checkpoint and each.checkpoint.digest for each in world.status.steps[:2])


async def test_a_namespace_without_room_for_checkpoints_has_none_and_its_trials_complete() -> None:
    volume = FakeVolume()
    volume.checkpoint_bytes = 0
    world = World(trial=manifest(CHECKPOINTS), volume=volume)
    await world.run()
    assert world.condition == ("Complete", "TrialComplete", "ran 3 steps")
    missing = world.status.steps[0].checkpoint
    assert missing is not None and missing.missing == "the checkpoints of the namespace have reached their limit"
    assert not any(each["op"] == "checkpoint" for runner in world.cluster.runners.values() for each in runner.requests)


async def test_a_volume_that_takes_no_checkpoint_delays_no_trial() -> None:
    volume = FakeVolume()
    volume.broken = True
    world = World(trial=manifest(CHECKPOINTS), volume=volume)
    await world.run()
    assert world.condition == ("Complete", "TrialComplete", "ran 3 steps")
    missing = world.status.steps[0].checkpoint
    assert missing is not None and missing.missing == "no space left on device"


async def test_a_checkpoint_that_the_runner_does_not_know_any_more_is_kept_and_the_next_one_follows_an_earlier_one() -> None:
    world = world_of()
    runner = await at_step(world, "a")
    runner.forgetful = True
    await at_step(world, "b")
    runner.forgetful = False
    await at_step(world, "c")
    assert {id: commit.base for id, (commit, _) in world.kept.checkpoints.items()} == {(1, 0): None, (1, 1): None}
    lose_pod(world)
    await at_step(world, "c", attempt=2)
    await world.run()
    assert world.condition[0] == "Complete"


async def test_a_layer_whose_base_is_gone_is_packed_again_with_all_changes_since_the_image() -> None:
    world = world_of()
    await at_step(world, "b")
    del world.kept.checkpoints[1, 0]
    await at_step(world, "c")
    ((id, (commit, _)),) = world.kept.checkpoints.items()
    assert (id, commit.base, commit.attempts) == ((1, 1), None, (1, 1))
    lose_pod(world)
    runner = await at_step(world, "c", attempt=2)
    assert [each for each in runner.restored if each.endswith("/agent")] == ["1/a/agent", "1/b/agent"]
    await world.run()
    assert world.condition[0] == "Complete"


async def test_the_attempts_of_kept_steps_are_known_also_if_their_layers_are_packed_again() -> None:
    config = {**CONFIG, "steps": [*CONFIG["steps"], {"name": "d"}]}
    files = {**FILES, **{path.replace("/c/", "/d/"): text for path, text in FILES.items() if "/c/" in path}}
    world = World(
        trial=manifest({**CHECKPOINTS, "onAgentError": "Continue"}, config, files), durations={**DURATIONS, "d/agent": 100.0}
    )
    await at_step(world, "b")
    lose_pod(world)
    await at_step(world, "c", attempt=2)
    del world.kept.checkpoints[2, 1]
    await at_step(world, "d", attempt=2)
    commit, _ = world.kept.checkpoints[2, 2]
    assert (commit.base, commit.attempts) == (None, (1, 2, 2))
    lose_pod(world)
    await at_step(world, "d", attempt=3)
    assert world.status.resumed is not None and world.status.resumed.attempts == [1, 2, 2]
    await world.run()
    assert agents(world.cluster.runners) == ["1/a/agent", "1/b/agent", "2/b/agent", "2/c/agent", "2/d/agent", "3/d/agent"]


@pytest.mark.parametrize("records", [(), ({"id": "1/a/begin"},)], ids=["missing", "forged"])
async def test_an_attempt_whose_kept_records_are_changed_ends_and_runs_nothing_of_another_attempt(records: tuple[Any, ...]) -> None:
    world = world_of()
    await at_step(world, "c")
    lose_pod(world)
    await world.run(until=lambda: world.status.attempt == 2)
    commit, files = world.kept.checkpoints[1, 0]
    world.kept.checkpoints[1, 0] = (commit.model_copy(update={"records": records}).sealed(), files)
    await at_step(world, "a", attempt=3)
    lost = world.status.attempts[-1]
    assert lost.reason == "RestoreFailed" and str(lost.message).startswith("the layer of step 1 of attempt 1 was changed; ")
    await world.run()
    assert [each for each in agents(world.cluster.runners) if each.startswith("2/")] == []


async def test_processes_that_a_restore_would_lose_make_the_next_attempt_start_earlier() -> None:
    world = world_of()
    runner = await at_step(world, "b")
    runner.survivors = 2
    await at_step(world, "c")
    assert world.status.steps[1].checkpoint is not None and world.status.steps[1].checkpoint.processes == 2
    lose_pod(world)
    await at_step(world, "b", attempt=2)
    why = "the checkpoint after step 2 of attempt 1 is not used: a restore loses 2 processes that the step left running"
    assert why in str(world.status.attempts[0].message)


async def test_records_of_kept_steps_that_the_new_runner_claims_to_have_are_ignored() -> None:
    world = world_of()
    await at_step(world, "c")
    lose_pod(world)
    await world.run(until=lambda: world.status.attempt == 2 and world.status.pod_uid is not None)
    kept = next(each for each in world.kept.checkpoints[1, 0][0].records if each["id"] == "1/a/verifier")
    forged = {**kept, "result": {**kept["result"], "captures": {}}}
    world.runner.records["1/a/verifier"] = forged
    await world.run()
    assert world.condition[0] == "Complete"
    undisturbed = world_of()
    await undisturbed.run()
    assert world.status.rewards == undisturbed.status.rewards


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


ONE_STEP = {"instruction.md": "do it\n", "tests/test.sh": "true\n", "solution/solve.sh": "true\n"}


@pytest.mark.parametrize(
    ("config", "ran"),
    [(CONFIG, ["1/a/agent", "1/b/agent", "1/c/agent", "2/c/agent"]), (SINGLE, ["1/task/agent", "2/task/agent"])],
    ids=["three steps", "a single step"],
)
async def test_a_pod_lost_after_the_last_checkpoint_costs_the_last_step(config: Any, ran: list[str]) -> None:
    spec = {"checkpoints": {"policy": "AfterStep", "keep": "WithResults"}, "onAgentError": "Continue"}
    world = World(trial=manifest(spec, config=config, files={**FILES, **ONE_STEP}), results={"task/verifier": rewarded(txt="0")})
    last = f"volume checkpoint 1 {len(config.get('steps', [0])) - 1} after"
    world.faults.at_point = lambda: lose_pod_of(world) if world.faults.trace[-1] == last else None
    await world.run()
    assert world.condition[0] == "Complete" and agents(world.cluster.runners) == ran
    assert [each.reason for each in world.status.attempts] == ["PodDeleted"]
    assert world.kept.retained and world.status.steps[-1].checkpoint is not None
    assert [each.final for each, _ in world.kept.checkpoints.values()].count(True) == 2


@pytest.mark.parametrize("stored", [False, True], ids=["on the volume", "in an object store"])
async def test_checkpoints_are_kept_before_the_status_says_that_the_trial_finished(stored: bool) -> None:
    """A user may delete a trial as soon as its status shows that it has finished, even while no operator runs."""
    world = World(trial=manifest({"checkpoints": {"policy": "AfterStep", "keep": "WithResults"}}), stored=stored)

    def record() -> None:
        if world.status.phase == "Complete":
            seen.append(isinstance(world.volume, FakeVolume) and world.volume.results["trial-uid"].retained)

    seen: list[bool] = []
    world.faults.at_point = record
    await world.run()
    assert world.condition[0] == "Complete" and seen and all(seen)
