"""With spec.verifier.isolation Both, each step is verified in the agent's pod and in a fresh pod, and the verdicts are compared."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.fake_runner import FakeRunner, Json
from tests.support.fake_volume import FakeVolume
from tests.support.played import rewarded
from tests.support.world import CONFIG, KEY, World, manifest
from tests.unit.reconcile.test_checkpoints import DURATIONS, at_step, lose_pod
from tests.unit.reconcile.test_failures import DENIED, no, refusing

BOTH: dict[str, Any] = {"verifier": {"isolation": "Both"}, "infrastructureRetries": 0}
AGAIN = {"a/verifier/verifier": 100.0}


def found(world: World) -> list[tuple[str, str, str]]:
    return [(each.step, each.kind, each.detail) for each in world.status.tampering]


async def declared() -> World:
    world = World(trial=manifest())
    await world.run()
    return world


async def verifying_again(**options: Any) -> World:
    """Return a world in which the pod of the second verification of step a is running."""
    world = World(trial=manifest(BOTH), durations=AGAIN, **options)
    await world.run(until=lambda: len(world.pods) == 2 and any(each.endswith("verifier/verifier") for each in world.runner.records))
    assert world.status.verifier is not None and world.status.steps[0].rewards == {"reward": 1}
    return world


async def test_equal_verdicts_leave_no_trace() -> None:
    world = World(trial=manifest(BOTH))
    await world.run()
    assert world.condition == ("Complete", "TrialComplete", "ran 3 steps") and world.errors == []
    assert (found(world), world.pods, world.kept.checkpoints) == ([], [], {})
    assert world.status.rewards == (await declared()).status.rewards
    assert world.status.isolation == "Shared"
    agents, *verifiers = world.cluster.runners.values()
    assert [each for each in agents.starts if each.endswith("/verifier")] == ["1/a/verifier", "1/b/verifier", "1/c/verifier"]
    assert [[id for id in each.starts if id.endswith("verifier/verifier")] for each in verifiers] == [
        [f"1/{step}/verifier/verifier"] for step in "abc"
    ]
    result = json.loads(world.kept.files["result.json"])
    assert "separate" not in json.dumps(result), "its rewards are those of the shared environment"


async def test_the_second_verification_gets_the_files_from_before_the_first_and_the_next_attempt_those_from_after_it() -> None:
    world = World(trial=manifest({**BOTH, "checkpoints": {"policy": "AfterStep"}}), durations=DURATIONS)
    await at_step(world, "c")
    _, *verifiers = world.cluster.runners.values()
    assert [[id for id in each.restored if id.endswith("/verifier")] for each in verifiers] == [[], ["1/a/verifier"]]
    stored = world.kept.checkpoints
    assert [(id, commit.complete, commit.base and commit.base.id) for id, (commit, _) in stored.items()] == [
        ((1, 0), True, None),
        ((1, 1), True, (1, 0)),
    ]
    assert all(f"1/{step}/verifier" in json.loads(stored[1, index][1]["layer"]) for index, step in enumerate("ab"))


async def test_different_verdicts_are_reported_in_the_status_and_the_results() -> None:
    world = World(trial=manifest(BOTH), results={"b/verifier/verifier": rewarded(json='{"reward": 0, "style": 1}')})
    await world.run()
    assert found(world) == [("b", "VerdictsDiffer", "reward: 0.5 in place, 0 in a fresh pod")]
    assert world.condition[0] == "Complete" and world.condition[2].endswith("; evidence of tampering: VerdictsDiffer")
    assert world.status.rewards == (await declared()).status.rewards
    assert json.loads(world.kept.files["result.json"])["tampering"][0]["kind"] == "VerdictsDiffer"


async def test_a_lost_pod_of_the_second_verification_costs_no_attempt_and_no_reward() -> None:
    world = await verifying_again()
    world.cluster.remove("Pod", KEY[0], "t-1-v0")
    await world.run()
    assert found(world) == [
        ("a", "ComparisonIncomplete", "the verifier of step a: pod t-1-v0 was deleted by another client"),
    ]
    assert world.condition == ("Complete", "TrialComplete", "ran 3 steps")
    assert (world.status.attempts, world.status.rewards) == ([], (await declared()).status.rewards)
    assert (world.pods, world.status.verifier, world.kept.checkpoints) == ([], None, {})


async def test_a_second_verification_that_ends_its_own_container_is_reported() -> None:
    world = await verifying_again()
    ended = {"exitCode": 137, "reason": "OOMKilled"}
    world.cluster.set_pod_status(
        KEY[0], "t-1-v0", phase="Failed", containerStatuses=[{"name": "main", "state": {"terminated": ended}}]
    )
    await world.run()
    ((step, kind, detail),) = found(world)
    assert (step, kind) == ("a", "ComparisonIncomplete") and "OOMKilled" in detail
    assert world.condition == ("Complete", "TrialComplete", "ran 3 steps")
    assert all(each.exception is None for each in world.status.steps)


@pytest.mark.parametrize("broken", ["exec sessions", "egress sidecar"])
async def test_a_pod_of_the_second_verification_that_cannot_be_used_costs_no_attempt_and_no_reward(broken: str) -> None:
    config = {**CONFIG, "environment": {**CONFIG["environment"], "network_mode": "no-network"}}
    world = World(trial=manifest(BOTH, config=config), settings={"egress": "Sidecar"})

    make = world.cluster._make_runner

    def spoiled(pod: Json) -> FakeRunner:
        runner = make(pod)
        if pod["metadata"]["name"].startswith("t-1-v") and broken == "exec sessions":
            runner.killed = 10**6
        elif pod["metadata"]["name"].startswith("t-1-v"):
            runner.sidecar.answer = b'{"boot": "b", "error": "nftables: no"}\n'
        return runner

    world.cluster._make_runner = spoiled
    await world.run()
    assert [(step, kind) for step, kind, _ in found(world)] == [(step, "ComparisonIncomplete") for step in "abc"]
    assert all("times in a row" in detail for *_, detail in found(world))
    assert world.condition == ("Complete", "TrialComplete", "ran 3 steps")
    assert (world.status.attempts, world.status.rewards) == ([], (await declared()).status.rewards)


async def test_an_agent_that_kills_exec_sessions_in_its_own_pod_during_the_second_verification_fails() -> None:
    world = await verifying_again()
    agents, _ = world.cluster.runners.values()
    agents.killed = 10**6
    await world.run()
    assert world.condition[:2] == ("Failed", "ExecSessionsKilled") and world.status.score == 0


async def test_a_policy_that_denies_the_pod_of_the_second_verification_does_not_fail_the_trial() -> None:
    world = refusing({f"t-1-v{step}": [no(DENIED)] * 100 for step in range(3)}, trial=manifest(BOTH))
    await world.run()
    assert [(step, kind) for step, kind, _ in found(world)] == [(step, "ComparisonIncomplete") for step in "abc"]
    assert world.condition == ("Complete", "TrialComplete", "ran 3 steps")


async def test_an_agent_that_ends_its_container_during_the_second_verification_does_not_avoid_it_unseen() -> None:
    world = await verifying_again()
    ended = {"exitCode": 137, "reason": "OOMKilled"}
    world.cluster.set_pod_status(
        KEY[0], "t-1", phase="Failed", containerStatuses=[{"name": "main", "state": {"terminated": ended}}]
    )
    await world.run()
    assert found(world) == [
        ("a", "ComparisonIncomplete", "the agent's container ended before the step was verified in a fresh pod")
    ]
    assert json.loads(world.kept.files["result.json"])["tampering"][0]["kind"] == "ComparisonIncomplete"
    assert world.condition[0] == "Complete" and world.status.steps[0].rewards == {"reward": 1}


@pytest.mark.parametrize("policy", ["AfterStep", "Never"])
async def test_a_volume_without_room_delays_no_trial_whose_verdicts_are_compared(policy: str) -> None:
    volume = FakeVolume()
    volume.checkpoint_bytes = 0
    world = World(trial=manifest({**BOTH, "checkpoints": {"policy": policy}}), volume=volume)
    await world.run()
    why = "storing the environment for the verifier: the checkpoints of the namespace have reached their limit"
    assert found(world) == [(step, "ComparisonIncomplete", why) for step in "abc"]
    assert world.condition == ("Complete", "TrialComplete", "ran 3 steps") and world.errors == []


async def test_changes_that_cannot_be_stored_cost_no_reward() -> None:
    world = World(trial=manifest(BOTH), durations={"a/agent": 100.0})
    await world.run(until=lambda: world.status.steps and world.status.steps[-1].phase == "Agent")
    world.runner.unpackable = "TooLarge"
    await world.run()
    assert [kind for _, kind, _ in found(world)] == ["ComparisonIncomplete"] * 3
    assert world.status.rewards == (await declared()).status.rewards


async def test_a_later_attempt_keeps_the_comparisons_of_the_steps_that_it_keeps() -> None:
    spec = {**BOTH, "infrastructureRetries": 1, "checkpoints": {"policy": "AfterStep"}}
    world = World(trial=manifest(spec), durations=DURATIONS, results={"a/verifier/verifier": rewarded(txt="0")})
    await at_step(world, "c")
    lose_pod(world)
    await at_step(world, "c", attempt=2)
    await world.run()
    assert world.condition[0] == "Complete"
    assert [(each.attempt, each.step, each.kind) for each in world.status.tampering] == [(1, "a", "VerdictsDiffer")]
