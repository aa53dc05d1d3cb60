"""With spec.verifier.isolation Separate, each step is verified in a fresh pod in which the agent's files are restored."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest

from multistep.errors import StoreError
from multistep.store.checkpoints.checkpoint_files import CheckpointCommit
from tests.support.fake_volume import FakeCheckpoints, FakeVolume
from tests.support.world import KEY, MIXED, World, manifest

APART: dict[str, Any] = {"verifier": {"isolation": "Separate"}}


async def ran(spec: dict[str, Any] | None = None, **options: Any) -> World:
    world = World(trial=manifest(spec or APART), **options)
    await world.run()
    return world


def phases(ids: list[str]) -> list[str]:
    return [id for id in ids if id.endswith("/agent")]


async def test_each_step_is_verified_on_the_files_that_its_agent_left() -> None:
    world, declared = await ran(), World(trial=manifest())
    await declared.run()
    assert world.condition == ("Complete", "TrialComplete", "ran 3 steps") and world.errors == []
    assert world.status.rewards == declared.status.rewards
    assert world.status.isolation == "Restored"
    agents, *verifiers = world.cluster.runners.values()
    assert [phases(each.restored) for each in verifiers] == [
        ["1/a/agent"],
        ["1/a/agent", "1/b/agent"],
        ["1/a/agent", "1/b/agent", "1/c/agent"],
    ]
    assert not any(id.endswith("/verifier") for id in agents.starts)
    assert not any(request.get("target") == "/tests" for request in agents.requests)
    assert [each.checkpoint for each in world.status.steps] == [None] * 3, "the trial has no checkpoints of its own"
    assert world.kept.checkpoints == {}


async def test_only_the_given_directories_are_restored() -> None:
    world = await ran({"verifier": {"isolation": "Separate", "paths": ["/app", "/srv"]}})
    asked = [each["paths"] for runner in world.cluster.runners.values() for each in runner.requests if each["op"] == "restore"]
    assert asked == [["/app", "/srv"]] * 3


@pytest.mark.parametrize(
    ("spec", "seconds"),
    [(APART, 1800.0), ({"checkpoints": {"policy": "AfterStep"}}, 300.0), ({"verifier": {"isolation": "Both"}}, 300.0)],
    ids=["apart", "after the step", "compared"],
)
async def test_a_checkpoint_without_which_the_step_has_no_verdict_may_take_longer(spec: Any, seconds: float) -> None:
    """With the shorter timeout, an agent could leave so many files that the checkpoint times out, and its attempt would be
    retried."""
    world = await ran(spec)
    requests = [each for runner in world.cluster.runners.values() for each in runner.requests]
    asked = [each["maxSeconds"] for each in requests if each["op"] == "checkpoint"]
    assert asked and set(asked) == {seconds}


async def test_a_step_that_declares_a_separate_verifier_keeps_it() -> None:
    world = World(trial=manifest(APART, config=MIXED))
    await world.run()
    _, *verifiers = world.cluster.runners.values()
    assert [bool(each.restored) for each in verifiers] == [False, True, True]


async def test_a_later_attempt_continues_after_a_step_that_was_verified_apart() -> None:
    durations = {f"{step}/agent": 100.0 for step in "abc"}
    world = World(trial=manifest({**APART, "checkpoints": {"policy": "AfterStep"}}), durations=durations)
    await world.run(until=lambda: world.status.current_step == "c" and world.status.steps[-1].phase == "Agent")
    rewards = [each.rewards for each in world.status.steps[:2]]
    assert world.pods == ["t-1"]
    world.cluster.remove("Pod", KEY[0], "t-1")
    await world.run()
    assert world.condition[0] == "Complete"
    assert world.status.resumed is not None and world.status.resumed.attempts == [1, 1]
    assert [each.rewards for each in world.status.steps[:2]] == rewards


@pytest.mark.parametrize("code", ["TooLarge", "Unreadable", "DiskFull", "Running"])
async def test_changes_that_cannot_be_stored_are_the_agents_failure(code: str) -> None:
    world = World(trial=manifest(APART), durations={"a/agent": 100.0})
    await world.run(until=lambda: world.status.steps and world.status.steps[-1].phase == "Agent")
    world.runner.unpackable = code
    await world.run()
    exception = world.status.steps[0].exception
    assert exception is not None
    assert (exception.type, exception.message) == (
        "RuntimeError",
        f"storing the environment for the verifier: {code}: not possible",
    )
    assert world.status.failure is not None and world.status.score == 0


@pytest.mark.parametrize("code", ["NoBase", "TooSlow", "Changed"])
async def test_what_no_agent_causes_ends_the_attempt_and_scores_nothing(code: str) -> None:
    world = World(trial=manifest({**APART, "infrastructureRetries": 0}), durations={"a/agent": 100.0})
    await world.run(until=lambda: world.status.steps and world.status.steps[-1].phase == "Agent")
    world.runner.unpackable = code
    await world.run()
    assert world.condition[:2] == ("Failed", "VerifierEnvironmentFailed")
    assert world.status.failure is not None
    assert (world.status.failure.class_, world.status.score) == ("Infrastructure", None)


async def test_a_volume_without_room_delays_the_verification_and_scores_nothing() -> None:
    volume = FakeVolume()
    volume.checkpoint_bytes = 0
    world = World(trial=manifest(APART), volume=volume)
    await world.run(until=lambda: world.condition[1] == "ResultsNotWritable")
    assert world.condition[2] == "the checkpoints of the namespace have reached their limit"
    assert (world.status.phase, world.status.rewards) == ("Running", None)
    volume.checkpoint_bytes = 1 << 20
    await world.run()
    assert world.condition == ("Complete", "TrialComplete", "ran 3 steps")


async def test_changes_that_would_fit_into_no_empty_volume_are_the_agents_failure() -> None:
    volume = FakeVolume()
    volume.most_bytes = 0
    world = await ran(volume=volume)
    asked = [
        each["maxPackedBytes"]
        for runner in world.cluster.runners.values()
        for each in runner.requests
        if each["op"] == "checkpoint"
    ]
    assert set(asked) == {1}, "the runner refuses it as TooLarge"


async def test_a_trial_without_checkpoints_holds_none_between_its_steps() -> None:
    world = World(trial=manifest(APART), durations={"b/agent": 100.0})
    await world.run(until=lambda: world.status.current_step == "b" and world.status.steps[-1].phase == "Agent")
    assert world.kept.checkpoints == {}


@pytest.mark.parametrize("lost", ["damaged", "missing"])
async def test_stored_files_that_were_lost_or_changed_end_the_attempt(lost: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def contents(*_: object) -> AsyncGenerator[bytes, None]:
        if lost == "missing":
            raise StoreError("reading results: No such file") from FileNotFoundError()
        yield b"[]"

    monkeypatch.setattr(FakeCheckpoints, "contents", contents)
    world = await ran({**APART, "infrastructureRetries": 0})
    assert world.condition[:2] == ("Failed", "VerifierEnvironmentFailed")
    assert world.status.failure is not None and world.status.score is None


async def test_a_checkpoint_that_vanishes_before_it_is_restored_ends_the_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    async def store(_self: FakeCheckpoints, _key: object, _draft: object, commit: CheckpointCommit) -> CheckpointCommit:
        return commit.sealed()

    monkeypatch.setattr(FakeCheckpoints, "store", store)
    world = await ran({**APART, "infrastructureRetries": 0})
    assert world.condition[:2] == ("Failed", "VerifierEnvironmentFailed")
    assert "the layer of step 1 of attempt 1 is missing" in world.condition[2]


async def test_a_verifiers_pod_with_another_image_costs_an_attempt_and_no_reward() -> None:
    world = World(trial=manifest({**APART, "infrastructureRetries": 0}))
    world.cluster.one_image = False
    await world.run()
    assert world.condition[:2] == ("Failed", "VerifierEnvironmentFailed") and "and this pod has" in world.condition[2]
    assert world.status.failure is not None
    assert (world.status.failure.class_, world.status.score) == ("Infrastructure", None)
