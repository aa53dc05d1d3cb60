"""Test trials that start from another trial's checkpoint or from the reference state."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from multistep.kube.resources import TRIALS
from tests.e2e.given import condition, finished, in_agent
from tests.simulated.given import HOLD, Given, OwnOperators, Step, trial

CONFIG = {"environment": {"workdir": "/app"}}
KEEP: dict[str, Any] = {"checkpoints": {"policy": "AfterStep", "keep": "WithResults"}}
COUNT = "reward-lines /srv/runs"  # the agent of each step adds a line
ADD: dict[str, Any] = {"agent": {"name": "command", "command": ["append /srv/runs $OWN"]}}


def solve(name: str) -> str:
    return f"append /srv/runs {name}"


def base(**spec: Any) -> dict[str, Any]:
    return trial(*(Step(name, solve=solve(name), test=COUNT) for name in ("one", "two", "three")), config=CONFIG, **spec)


def branch(of: str, step: str, own: str, **spec: Any) -> dict[str, Any]:
    agent = {**ADD["agent"], "env": [{"name": "OWN", "value": own}]}
    return base(**{"from": {"trial": of, "step": step}, "agent": agent, **spec})


def steps_of(found: dict[str, Any]) -> list[tuple[str, str | None, float]]:
    """Return for each step its name, the other trial that ran it (None if this trial did), and its reward."""
    return [(each["name"], each.get("trial"), each["rewards"]["reward"]) for each in found["status"]["steps"]]


@pytest.mark.long
async def test_trials_from_two_steps_of_one_base_have_own_files_and_own_rewards(given: Given) -> None:
    made = await given.ended(base(**KEEP))
    name = made["metadata"]["name"]
    assert steps_of(made) == [("one", None, 1), ("two", None, 2), ("three", None, 3)]
    first, second, other = await asyncio.gather(
        given.ended(branch(name, "one", "first", toStep="two")),
        given.ended(branch(name, "two", "second")),
        given.ended(branch(name, "two", "other")),
    )
    assert steps_of(first) == [("one", name, 1), ("two", None, 2)], "the files of step one, and its own"
    assert steps_of(second) == steps_of(other) == [("one", name, 1), ("two", name, 2), ("three", None, 3)]
    assert first["status"]["rewards"] == {"reward": 1.5}
    assert second["status"]["startedFrom"]["digest"] == made["status"]["steps"][1]["checkpoint"]["digest"]
    assert (await given.get(name))["status"] == made["status"], "the base is unchanged"


@pytest.mark.long
async def test_a_branch_can_be_branched_and_its_source_deleted(given: Given) -> None:
    made = await given.ended(base(**KEEP))
    first = await given.ended(branch(made["metadata"]["name"], "one", "first", toStep="two", **KEEP))
    for each in (made, first):
        await given.deleted(each["metadata"]["name"])
    second = await given.ended(branch(first["metadata"]["name"], "two", "second"))
    ran_by = [("one", made["metadata"]["name"], 1), ("two", first["metadata"]["name"], 2), ("three", None, 3)]
    assert steps_of(second) == ran_by, second["status"]


async def test_the_reference_state_is_played_once_and_outlives_its_trial(given: Given) -> None:
    nop = {"agent": {"name": "nop"}, "fromStep": "three"}
    found = await asyncio.gather(*(given.ended(base(**nop, name=f"start-{number}")) for number in range(2)))
    first = found[0]["status"]["startedFrom"]
    for each in found:
        assert steps_of(each) == [("one", first["trial"], 1), ("two", first["trial"], 2), ("three", None, 2)]
    references = await given.client.list_all(TRIALS, given.namespace, label_selector="multistep.dev/reference")
    assert [each["metadata"]["name"] for each in references] == [first["trial"]]
    await given.deleted(first["trial"])
    later = await given.ended(base(**nop, name="start-later"))
    assert later["status"]["startedFrom"] == first, "from the deleted reference trial's results"


async def test_a_solution_that_fails_its_gate_fails_the_trial_and_names_the_reference_trial(given: Given) -> None:
    steps = (Step("one", config={"min_reward": 2.0}), Step("two"))
    found = await given.ended(trial(*steps, fromStep="two", agent={"name": "nop"}))
    failed = condition(found, "Failed")
    assert failed["reason"] == "ReferenceFailed" and "of trial reference-" in failed["message"], failed
    assert found["status"]["failure"]["class"] == "Task"


@pytest.mark.parametrize(
    ("source", "step", "reason", "message"),
    [
        ({}, "one", "SourceCheckpointMissing", "has no checkpoint after step one"),
        (KEEP, "nine", "InvalidSpec", "spec.from.step: the task has no step 'nine'. Its steps are one, two, three"),
    ],
    ids=["no checkpoints", "unknown step"],
)
async def test_a_missing_checkpoint_is_refused_by_name(source: Any, step: str, reason: str, message: str, given: Given) -> None:
    made = await given.ended(base(**{"toStep": "one", **source}))
    found = await given.ended(branch(made["metadata"]["name"], step, "own"))
    failed = condition(found, "Failed")
    assert failed["reason"] == reason and message in failed["message"], failed


async def test_a_trial_waits_for_its_active_source_also_over_a_restart_of_the_operator(own: OwnOperators) -> None:
    given, operator = own.given, await own.started()
    steps = (Step("one", solve=solve("one"), test=COUNT), Step("two", solve=HOLD, test=COUNT), Step("three", test=COUNT))
    source = (await given.applied(trial(*steps, config=CONFIG, **KEEP)))["metadata"]["name"]
    await given.until(source, lambda each: in_agent(each) and each["status"]["currentStep"] == "two")
    made = branch(source, "two", "own")
    made["spec"]["task"] = trial(*steps, config=CONFIG)["spec"]["task"]
    name = (await given.applied(made))["metadata"]["name"]
    await given.until(name, lambda each: any(held["reason"] == "SourceNotReady" for held in each["status"].get("conditions", [])))
    await operator.kill()
    await operator.start()
    await given.go(source)
    found = await given.until(name, finished)
    assert steps_of(found) == [("one", source, 1), ("two", source, 1), ("three", None, 2)], found["status"]
