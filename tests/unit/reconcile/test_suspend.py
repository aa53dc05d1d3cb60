"""Suspend, resume and stop a trial, reconciled in a cluster in memory."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.world import MIXED, START, World, manifest, timeless

LONG = {"a/agent": 100.0, "b/agent": 50.0, "c/agent": 20.0}
REWARDS = [{"reward": 1}, {"reward": 0.5, "style": 1}, {"reward": 0}]


def events(world: World, *reasons: str) -> list[tuple[str, str]]:
    return [(each["reason"], each["note"]) for each in world.cluster.events if each["reason"] in reasons]


def rewards(world: World) -> list[Any]:
    return [step.rewards for step in world.status.steps]


async def in_step(name: str, spec: dict[str, Any] | None = None, **options: Any) -> World:
    """Return a world with a trial in which this step's agent is running."""
    world = World(trial=manifest(spec), **{"durations": LONG, **options})
    await world.run(until=lambda: world.status.current_step == name and world.status.steps[-1].phase == "Agent")
    return world


async def test_a_paused_trial_ends_its_step_and_then_waits_with_its_pod() -> None:
    world = await in_step("a")
    world.change_trial(suspend=True)
    await world.reconcile()
    assert world.condition == ("Reconciling", "Suspending", "step 1: a; the trial is suspended when this finishes")
    await world.run()
    paused = "after step a; pod t-1 is retained; set spec.suspend to false to resume with the next step"
    assert (world.status.phase, world.condition) == ("Suspended", ("Reconciling", "Paused", paused))
    assert (rewards(world), world.status.current_step, world.pods) == ([{"reward": 1}], "a", ["t-1"])
    assert world.status.steps[0].completion_time and world.kept.steps.keys() == {"a"}
    execs, writes = world.execs, list(world.cluster.writes)
    for _ in range(3):
        world.now += 300
        assert await world.reconcile() is None
    assert (world.execs, world.cluster.writes) == (execs, writes)
    world.change_trial(suspend=False)
    await world.run()
    assert (world.condition[0], rewards(world), len(world.cluster.runners)) == ("Complete", REWARDS, 1)
    assert set(world.runner.starts.values()) == {1}
    assert events(world, "Suspended", "Resumed") == [("Suspended", paused), ("Resumed", "attempt 1 continues")]


async def test_what_a_paused_trial_has_is_as_it_was_when_it_continues() -> None:
    world = await in_step("b")
    world.change_trial(suspend=True)
    await world.run()
    before = world.status.steps
    world.now += 5000
    world.change_trial(suspend=False)
    await world.run(until=lambda: world.status.current_step == "c")
    assert world.status.steps[:2] == before


async def test_a_step_that_was_the_last_ends_the_trial_though_it_is_suspended() -> None:
    world = await in_step("c")
    world.change_trial(suspend=True)
    await world.run()
    assert (world.condition[0], rewards(world)) == ("Complete", REWARDS)


async def test_a_trial_suspended_while_its_environment_is_prepared_waits_before_the_first_step() -> None:
    world = World(durations={"/healthcheck": 30.0, **LONG})
    await world.reconcile()
    world.change_trial(suspend=True)
    await world.run()
    assert world.condition[1:] == (
        "Paused",
        "before the first step; pod t-1 is retained; set spec.suspend to false to resume with the next step",
    )
    assert (world.status.steps, world.status.current_step, world.runner.starts) == (
        [],
        None,
        {"1//prepare": 1, "1//healthcheck": 1},
    )
    world.change_trial(suspend=False)
    await world.run()
    assert (world.condition[0], rewards(world), len(world.cluster.runners)) == ("Complete", REWARDS, 1)


@pytest.mark.parametrize("policy", ["Pause", "ReleaseAfterStep", "Release"])
@pytest.mark.parametrize("user", [0, 1000])
async def test_a_prestarted_trial_is_ready_before_its_turn_and_starts_in_that_pod(policy: str, user: int) -> None:
    world = World(trial=manifest({"suspend": True, "prestart": True, "suspendPolicy": policy}), durations=LONG, user=user)
    await world.run()
    assert (world.status.phase, world.condition[1]) == ("Suspended", "Paused")
    assert (world.status.steps, len(world.pods), set(world.runner.starts)) == ([], 1, {"1//prepare", "1//healthcheck"})
    ready = world.pods
    world.now += 5000
    assert await world.reconcile() is None
    world.change_trial(suspend=False)
    await world.run(until=lambda: world.status.current_step == "a")
    assert world.pods == ready
    await world.run()
    assert (world.condition[0], rewards(world), world.status.attempts) == ("Complete", REWARDS, [])
    assert world.status.suspended_seconds and world.status.suspended_seconds >= 5000


async def test_a_prestarted_pod_that_is_lost_is_created_again_when_the_trial_continues_only() -> None:
    world = World(trial=manifest({"suspend": True, "prestart": True}))
    await world.run()
    world.cluster.remove("Pod", "default", "t-1")
    await world.run()
    assert (world.status.phase, world.condition[1], world.pods) == ("Suspended", "Released", [])
    assert [each.reason for each in world.status.attempts] == ["PodDeleted"]
    world.change_trial(suspend=False)
    await world.run()
    assert (world.condition[0], rewards(world)) == ("Complete", REWARDS)


async def test_a_prestarted_trial_that_is_not_wanted_ready_any_more_is_suspended_by_its_policy() -> None:
    world = World(trial=manifest({"suspend": True, "prestart": True, "suspendPolicy": "Release"}))
    await world.run()
    world.change_trial(prestart=False)
    await world.run()
    assert (world.status.phase, world.condition[1], world.pods) == ("Suspended", "Released", [])


async def test_a_released_trial_loses_its_pod_at_once_and_restarts() -> None:
    world = await in_step("b", {"suspendPolicy": "Release", "infrastructureRetries": 0})
    world.change_trial(suspend=True)
    assert await world.reconcile() is None
    released = "no pod is retained; set spec.suspend to false to start at step 1, as attempt 2"
    assert (world.status.phase, world.condition[1:], world.pods) == ("Suspended", ("Released", released), [])
    (attempt,) = world.status.attempts
    assert (attempt.number, attempt.reason) == (1, "Suspended")
    assert [(step.name, step.rewards) for step in attempt.steps] == [("a", {"reward": 1}), ("b", None)]
    assert (world.status.steps, world.status.current_step) == ([], None)
    world.now += 3600
    assert await world.reconcile() is None
    world.change_trial(suspend=False)
    await world.run()
    assert (world.condition[0], rewards(world), world.status.attempt) == ("Complete", REWARDS, 2)
    assert events(world, "Suspended", "Resumed") == [("Suspended", released), ("Resumed", "attempt 2 starts")]
    assert [sorted(runner.starts) for runner in world.cluster.runners.values()][1][0].startswith("2/")


async def test_a_trial_may_be_released_after_its_step() -> None:
    world = await in_step("a", {"suspendPolicy": "ReleaseAfterStep"})
    world.change_trial(suspend=True)
    await world.run()
    assert (world.status.phase, world.condition[1], world.pods) == ("Suspended", "Released", [])
    (attempt,) = world.status.attempts
    assert [(step.name, step.rewards) for step in attempt.steps] == [("a", {"reward": 1})]
    assert attempt.steps[0].completion_time
    assert [reason for reason, _ in events(world, "Suspended")] == ["Suspended", "Suspended"]


async def test_a_paused_trial_may_be_released_later() -> None:
    world = await in_step("a")
    world.change_trial(suspend=True)
    await world.run()
    world.change_trial(suspendPolicy="Release")
    await world.run()
    assert (world.condition[1], world.pods) == ("Released", [])
    world.change_trial(suspend=False)
    await world.run()
    assert (world.condition[0], rewards(world)) == ("Complete", REWARDS)


async def test_a_released_attempt_does_not_count_and_the_next_has_no_back_off() -> None:
    world = await in_step("a", {"suspendPolicy": "Release", "infrastructureRetries": 1})
    for number in (2, 3):
        world.change_trial(suspend=True)
        await world.reconcile()
        world.change_trial(suspend=False)
        await world.reconcile()
        assert world.pods == [f"t-{number}"]
    world.cluster.remove("Pod", "default", "t-3")
    await world.run(until=lambda: world.pods == ["t-4"])
    world.cluster.remove("Pod", "default", "t-4")
    await world.run()
    assert world.condition == ("Failed", "PodDeleted", "pod t-4 was deleted by another client; this was attempt 2 of 2")
    assert [each.reason for each in world.status.attempts] == ["Suspended", "Suspended", "PodDeleted", "PodDeleted"]


async def test_a_pod_that_does_not_run_yet_is_released_whatever_the_policy() -> None:
    world = World(pods_run=False)
    await world.reconcile()
    world.change_trial(suspend=True)
    await world.run()
    assert (world.condition[1], world.pods) == ("Released", [])


async def test_a_suspended_trial_whose_pod_is_lost_gets_no_other_until_it_continues() -> None:
    world = await in_step("a")
    world.change_trial(suspend=True)
    await world.run()
    world.cluster.remove("Pod", "default", "t-1")
    assert await world.reconcile() is None
    assert (world.condition[1], world.pods, world.status.attempts[0].reason) == ("Released", [], "PodDeleted")
    world.now += 10
    world.change_trial(suspend=False)
    await world.run()
    assert (world.condition[0], rewards(world)) == ("Complete", REWARDS)


async def test_a_container_that_stops_itself_while_paused_is_no_free_retry_and_its_steps_stay_as_they_are() -> None:
    world = await in_step("a")
    world.change_trial(suspend=True)
    await world.run()
    before = timeless(world.object["status"])["steps"]
    ended = {"name": "main", "state": {"terminated": {"exitCode": 143, "reason": "Error"}}}
    world.pod_status(phase="Failed", containerStatuses=[ended])
    await world.run()
    assert world.condition[0] == "Complete"
    assert world.status.exception and world.status.exception.type == "ContainerKilledError"
    assert world.status.failure and world.status.failure.class_ == "Agent"  # only the processes that its agent left were running
    assert timeless(world.object["status"])["steps"] == before


async def test_a_step_verified_apart_is_paused_after_its_verification() -> None:
    world = World(trial=manifest(config=MIXED), durations={"a/verifier/verifier": 40.0})
    await world.run(until=lambda: world.status.verifier is not None and world.pods == ["t-1", "t-1-v0"])
    world.change_trial(suspend=True)
    await world.run()
    assert (world.condition[1], rewards(world), world.pods) == ("Paused", [{"reward": 1}], ["t-1"])


async def test_releasing_a_step_verified_apart_removes_both_pods() -> None:
    world = World(trial=manifest({"suspendPolicy": "Release"}, config=MIXED), durations={"a/verifier/verifier": 40.0})
    await world.run(until=lambda: world.pods == ["t-1", "t-1-v0"])
    world.change_trial(suspend=True)
    await world.run()
    assert (world.condition[1], world.pods) == ("Released", [])


async def test_an_image_of_another_user_keeps_its_place_over_a_release() -> None:
    world = await in_step("a", {"suspendPolicy": "Release"}, user=1000)
    assert world.pods == ["t-1-root"]
    world.change_trial(suspend=True)
    await world.run()
    assert world.pods == []
    world.change_trial(suspend=False)
    await world.reconcile()
    assert world.pods == ["t-2-root"]


async def test_suspended_time_does_not_count_for_the_deadline() -> None:
    world = await in_step("a", {"activeDeadlineSeconds": 200})
    world.change_trial(suspend=True)
    await world.run()
    assert world.now == START + 100
    world.now += 10_000
    assert await world.reconcile() is None
    world.change_trial(suspend=False)
    await world.run()
    assert (world.condition[0], world.status.suspended_seconds) == ("Complete", 10_000)


async def test_time_before_the_first_start_counts_for_nothing() -> None:
    world = World(trial=manifest({"suspend": True, "activeDeadlineSeconds": 150}), durations=LONG)
    await world.run()
    world.now += 10_000
    world.change_trial(suspend=False)
    await world.run()
    assert world.condition[:2] == ("Failed", "DeadlineExceeded")
    assert (world.status.suspended_seconds, int(world.now - START)) == (None, 10_150)


async def test_an_attempt_started_when_its_trial_continued() -> None:
    world = await in_step("a", {"suspendPolicy": "Release"})
    world.change_trial(suspend=True)
    await world.run()
    world.now += 500
    world.change_trial(suspend=False)
    await world.run(until=lambda: world.status.steps)
    world.now += 10
    world.cluster.remove("Pod", "default", "t-2")
    await world.reconcile()
    first, second = world.status.attempts
    assert first.start_time and first.completion_time and second.start_time
    assert (second.start_time - first.completion_time).total_seconds() == 500


# -- stopping a trial


async def test_a_stopped_trial_has_failed_with_what_it_had_and_without_pods() -> None:
    world = await in_step("b", {"podCleanup": "Never"})
    world.change_trial(stop=True)
    await world.run()
    assert world.condition == ("Failed", "Stopped", "the trial was stopped: spec.stop is true")
    assert (rewards(world), world.status.rewards, world.pods) == ([{"reward": 1}, None], None, [])
    result = json.loads(world.kept.files["result.json"])
    assert (result["verifier_result"], result["exception_info"]["exception_type"]) == (None, "Stopped")
    assert len(world.cluster.runners) == 1


@pytest.mark.parametrize("policy", ["Pause", "Release"])
async def test_a_suspended_trial_can_be_stopped(policy: str) -> None:
    world = await in_step("b", {"suspendPolicy": policy})
    world.change_trial(suspend=True)
    await world.run()
    world.change_trial(stop=True)
    await world.run()
    assert (world.condition[:2], world.pods) == (("Failed", "Stopped"), [])
    assert "result.json" in world.kept.files


async def test_a_trial_stopped_before_it_started_never_has_a_pod() -> None:
    world = World(trial=manifest({"stop": True}))
    await world.run()
    assert (world.condition[:2], world.cluster.runners) == (("Failed", "Stopped"), {})


async def test_a_trial_whose_task_went_away_can_be_stopped() -> None:
    variable = {"name": "X", "valueFrom": {"secretKeyRef": {"name": "none", "key": "x"}}}
    world = World(trial=manifest({"variables": [variable]}))
    await world.reconcile()
    assert world.condition[1] == "TaskUnavailable"
    world.change_trial(stop=True)
    await world.run()
    assert world.condition[:2] == ("Failed", "Stopped")


async def test_stopping_what_is_finished_changes_nothing() -> None:
    world = World()
    await world.run()
    before = world.status
    world.change_trial(stop=True)
    await world.run()
    assert world.status == before
