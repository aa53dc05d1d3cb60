"""Test the attempts that spec.scoring.overrideErrorPolicy starts after an exception of a step."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.played import rewarded
from tests.support.world import World, manifest
from tests.unit.reconcile.scenarios import TWO

NO_REWARD = {"RewardFileNotFoundError": {"retry": True}}


def world(changes: dict[str, Any], results: dict[str, Any], **spec: Any) -> World:
    return World(trial=manifest({"scoring": {"overrideErrorPolicy": changes}, **spec}, config=TWO), results=results)


@pytest.mark.parametrize("checkpoints", [{}, {"checkpoints": {"policy": "AfterStep"}}])
async def test_a_trial_runs_again_from_its_first_step_and_its_result_stands_when_no_retry_is_left(checkpoints: Any) -> None:
    made = world(NO_REWARD, {"b/verifier": rewarded()}, infrastructureRetries=1, **checkpoints)
    await made.run()
    assert made.condition[:2] == ("Complete", "TrialComplete")
    assert [(each.number, each.reason) for each in made.status.attempts] == [(1, "RetriedBySpec")]
    assert "RewardFileNotFoundError" in (made.status.attempts[0].message or "")
    assert [step.exception and step.exception.type for step in made.status.attempts[0].steps] == [None, "RewardFileNotFoundError"]
    assert (made.status.attempt, made.status.resumed, len(made.status.steps)) == (2, None, 2)
    assert (made.status.failure and made.status.failure.reason, made.status.score) == ("RewardFileNotFoundError", 0.5)


async def test_without_a_word_of_the_spec_the_result_stands() -> None:
    made = world({}, {"b/verifier": rewarded()})
    await made.run()
    assert (made.status.attempts, made.status.attempt, made.status.score) == ([], 1, 0.5)


async def test_a_container_that_an_agent_ended_is_an_exception_of_its_step() -> None:
    def end_container(_: Any) -> dict[str, Any]:
        terminated = {"terminated": {"exitCode": 1, "reason": "Error"}}
        made.pod_status(phase="Failed", containerStatuses=[{"name": "main", "state": terminated}])
        made.runner.streams[-1].break_now()
        return {}

    made = world({"ContainerKilledError": {"retry": True}}, {"b/agent": end_container}, infrastructureRetries=1)
    await made.run()
    assert [(each.reason, each.steps[-1].exception and each.steps[-1].exception.type) for each in made.status.attempts] == [
        ("RetriedBySpec", "ContainerKilledError")
    ]
    assert (made.status.failure and made.status.failure.reason, made.status.score) == ("ContainerKilledError", 0.5)
