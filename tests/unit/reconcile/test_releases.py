"""Operators and runners of different releases: a trial waits for an operator that supports its runner; no phase runs twice."""

from __future__ import annotations

import pytest

from tests.support.world import World

DURATIONS = {"a/agent": 100.0, "c/verifier": 40.0}


async def test_a_trial_waits_for_an_operator_that_speaks_to_its_runner_and_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the agent runs, an operator is installed that is too old for the pod's runner, and later one that supports it.

    Meanwhile the trial waits, for longer than an operator tolerates a runner that violates the protocol.
    """
    calm = World(durations=DURATIONS)
    await calm.run()
    world = World(durations=DURATIONS)
    await world.run(until=lambda: world.now > world.runner.records.get("1/a/agent", {}).get("startedAt", world.now))
    world.runner.protocols = {7, 8}
    world.reconciler = world.fresh()
    back = world.now + 1000
    await world.run(until=lambda: world.now > back)
    reported = "this runner speaks protocols [7, 8], this operator 5, 4, 3, 2, 1: run an operator of a release in between"
    assert world.condition == ("Reconciling", "RunnerProtocol", reported)
    assert (world.status.phase, world.status.rewards, world.status.attempts) == ("Running", None, [])
    monkeypatch.setattr("multistep.runner_client.session.PROTOCOLS", (8, 7))
    world.reconciler = world.fresh()
    await world.run()
    assert world.condition == ("Complete", "TrialComplete", "ran 3 steps")
    assert world.status.rewards == calm.status.rewards and world.kept.steps == calm.kept.steps
    assert set(world.runner.starts.values()) == {1} and len(world.cluster.runners) == 1


async def test_an_operator_that_was_rolled_back_ignores_records_of_operations_that_it_does_not_know() -> None:
    world = World(durations=DURATIONS)
    await world.run(until=lambda: world.status.current_step == "a" and world.runner.records)
    world.runner.records["1/a/later"] = {**next(iter(world.runner.records.values())), "id": "1/a/later", "op": "of-a-later-release"}
    world.reconciler = world.fresh()
    await world.run()
    assert world.condition == ("Complete", "TrialComplete", "ran 3 steps")


async def test_a_deadline_bounds_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("multistep.runner_client.session.PROTOCOLS", (8, 7))
    world = World(durations=DURATIONS)
    world.change_trial(activeDeadlineSeconds=600)
    await world.run()
    assert world.condition[:2] == ("Failed", "DeadlineExceeded") and world.status.rewards is None
    assert not world.runner.starts and len(world.cluster.runners) == 1


async def test_after_a_rollback_a_trial_with_a_finding_of_a_later_release_continues_and_keeps_it() -> None:
    world = World(durations={"b/agent": 100.0})
    await world.run(until=lambda: world.status.current_step == "b")
    later = {"attempt": 1, "step": "a", "kind": "LaterKind", "detail": "/x"}
    made = world.object
    world.cluster.put({**made, "status": {**made["status"], "tampering": [later]}})
    await world.run()
    assert (world.condition[0], world.object["status"]["tampering"], world.errors) == ("Complete", [later], [])
