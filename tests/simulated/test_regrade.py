"""Regrades: verifiers run again on stored checkpoints, without an agent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from multistep.kube.resources import PODS, SWEEPS, TRIALS
from multistep.pods import pod_identity
from tests.e2e.given import Object, condition, finished
from tests.e2e.test_cli import multistep
from tests.simulated.given import Given, Step, trial
from tests.support.simulation.operator import Operator
from tests.support.waiting import eventually
from tests.support.whole_status import whole

KEEP: Mapping[str, Any] = {"checkpoints": {"policy": "AfterStep", "keep": "WithResults"}}
# A test whose reward is a number that only JSON keeps exactly, if each of the steps so far has added its line to a file.
TEST = "\n".join(
    f'when /srv/lines {number} reward {{"reward": {number}.1, "mode": 1, "third": 0.30000000000000004}}' for number in (1, 2, 3)
)
WORK = "append /srv/lines line"
TOO_SLOW = f"{WORK}\nhold"
LIMIT = {"agent": {"timeout_sec": 1}}


def steps(test: str = TEST) -> list[Step]:
    return [
        Step("one", solve=WORK, test=test),
        Step("two", solve=TOO_SLOW, test=test, config=LIMIT),
        Step("three", solve=WORK, test=test),
    ]


def source(**spec: Any) -> Object:
    return trial(*steps(), onAgentError="Continue", **{**KEEP, **spec})


def regrade(of: Object, test: str = TEST, **spec: Any) -> Object:
    again = {"regrade": {"trial": of["metadata"]["name"]}, "agent": {"name": "nop"}, "onAgentError": "Continue"}
    return trial(*steps(test), **{**again, **spec})


def verdicts(found: Object) -> Any:
    status = found["status"]
    each = [
        (step["name"], step.get("rewards"), step.get("gate"), (step.get("exception") or {}).get("type")) for step in status["steps"]
    ]
    return each, status.get("rewards"), status.get("failure")


async def ran_no_agent(given: Given, name: str) -> bool:
    """Return whether the trial's pods had only the roles records and verifier, and one container each: no agent host."""
    label, wanted = pod_identity.label_value(name), {"records", "verifier"}

    async def recorded() -> list[Object]:  # the watch of pods may be later than that of trials
        states = [each.object for each in given.recorder._states if each.kind == PODS.kind]
        pods = [each for each in states if each["metadata"]["labels"].get(pod_identity.LABEL_TRIAL) == label]
        return pods if wanted <= roles(pods) else []

    pods = await given.when(recorded)
    return roles(pods) == wanted and {len(each["spec"]["containers"]) for each in pods} == {1}


def roles(pods: list[Object]) -> set[str]:
    return {each["metadata"]["labels"][pod_identity.LABEL_ROLE] for each in pods}


async def results_of(given: Given, name: str, to: Path) -> Object:
    """Fetch a trial's results, check them by their evidence, and return result.json."""
    code, _, err = await multistep("results", name, str(to), "-n", given.namespace)
    assert code == 0, err
    code, out, err = await multistep("verify", str(to))
    assert code == 0, out + err
    found: Object = json.loads((to / "result.json").read_text())
    return found


async def test_the_same_tests_give_the_same_rewards_and_others_give_others(given: Given, tmp_path: Path) -> None:
    of = await given.ended(source())
    assert [each[3] for each in verdicts(of)[0]] == [None, "AgentTimeoutError", None], of["status"]
    assert of["status"]["steps"][2]["rewards"] == {"reward": 3.1, "mode": 1, "third": 0.30000000000000004}, of["status"]
    again = await given.ended(regrade(of))
    assert verdicts(again) == verdicts(of), again["status"]
    assert again["status"]["regraded"]["uid"] == of["metadata"]["uid"]
    assert await ran_no_agent(given, again["metadata"]["name"])
    before = await results_of(given, of["metadata"]["name"], tmp_path / "of")
    after = await results_of(given, again["metadata"]["name"], tmp_path / "again")
    assert json.dumps(after["verifier_result"]) == json.dumps(before["verifier_result"])
    said = json.loads((tmp_path / "again/evidence.json").read_text())["predicate"]
    stated = json.loads((tmp_path / "of/evidence.json").read_text())["predicate"]
    assert [each["checkpoint"] for each in said["regraded"]["steps"]] == [each["checkpoint"] for each in stated["steps"]]
    assert [each["tests"] for each in said["regraded"]["steps"]] == [each["tests"] for each in said["steps"]]

    other = await given.ended(regrade(of, TEST.replace(".1,", ".25,")))
    assert [each["rewards"]["reward"] for each in other["status"]["steps"]] == [1.25, 2.25, 3.25], other["status"]
    assert (await given.get(of["metadata"]["name"]))["status"] == of["status"], "the source stays unchanged"


async def test_a_deleted_trial_is_regraded_as_long_as_its_results_are_kept(given: Given) -> None:
    of = await given.ended(source())
    await given.deleted(of["metadata"]["name"])
    again = await given.ended(regrade(of))
    assert verdicts(again)[:2] == verdicts(of)[:2], again["status"]


@pytest.mark.parametrize("checkpoints", [{}, {"policy": "AfterStep"}], ids=["without checkpoints", "kept while active"])
async def test_a_trial_without_stored_checkpoints_is_refused_by_name(checkpoints: Object, given: Given, shared: Operator) -> None:
    of = await given.ended(source(checkpoints=checkpoints))
    await eventually(lambda: shared.has_no_results(of, ".checkpoints"))
    again = await given.ended(regrade(of))
    failed = condition(again, "Failed")
    assert failed["reason"] == "RegradeImpossible" and "keep: WithResults" in failed["message"], failed
    assert f"trial {of['metadata']['name']}" in failed["message"] and "step " in failed["message"], failed
    assert again["status"]["failure"]["class"] == "Configuration" and "podName" not in again["status"]


@pytest.mark.long
async def test_the_command_regrades_a_trial_with_changed_tests(given: Given, tmp_path: Path) -> None:
    of = await given.ended(source())
    tests = tmp_path / "changed/steps/two/tests"
    tests.mkdir(parents=True)
    (tests / "test.sh").write_text("reward 7")
    name = of["metadata"]["name"]
    options = ["-n", given.namespace, "--name", "again", "--tests", str(tmp_path / "changed"), "-o", "json"]
    code, out, err = await multistep("regrade", name, *options)
    assert code == 1, out + err  # exit code 1, as for the regraded trial: a step's agent exceeded its timeout
    shown = json.loads(out)
    assert [each["rewards"]["reward"] for each in shown["status"]["steps"]] == [1.1, 7.0, 3.1], out
    code, out, err = await multistep("show", "again", "-n", given.namespace)
    assert f"regrades: trial {name} ({of['metadata']['uid']})" in out, out + err


# -- 100 trials

COUNT = 100
# An agent that writes a number of its own to a file, and a test that makes an uncommon reward of it.
WRITES = "\n".join(f"if *-writer-{number}-* append /srv/{number} line" for number in range(1, COUNT + 1))
JUDGE = "\n".join(
    f'when /srv/{number} 1 reward {{"reward": 0.1{number * 7919}, "size": {number}, "other": {number}.{number * 104729}e-7}}'
    for number in range(1, COUNT + 1)
)


def sweep(name: str, agent: Object, **spec: Any) -> Object:
    files = {"instruction.md": "Leave a number.\n", "tests/test.sh": JUDGE}
    task = {"name": "number", "inline": {"config": {}, "files": files}}
    return {
        "apiVersion": SWEEPS.api_version,
        "kind": SWEEPS.kind,
        "metadata": {"name": name},
        "spec": {"tasks": [task], "agents": [{"name": "writer", "agent": agent}], "attempts": COUNT, "parallelism": 8, **spec},
    }


async def trials_of(given: Given, name: str) -> dict[str, Object]:
    """Return a finished sweep's trials by number."""
    await given.sweep_ended(name)
    listed = await given.client.list_all(TRIALS, given.namespace, label_selector=f"multistep.dev/sweep={name}")
    return {each["metadata"]["labels"]["multistep.dev/number"]: whole(each) for each in listed}


@pytest.mark.long
async def test_100_trials_are_regraded_to_the_same_rewards_bit_for_bit(given: Given, tmp_path: Path) -> None:
    agent = {"name": "command", "command": [WRITES]}
    await given.applied(sweep("first", agent, template={"spec": dict(KEEP)}))
    before = await trials_of(given, "first")
    assert len(before) == COUNT and all(finished(each) for each in before.values())
    await given.applied(sweep("again", {"name": "nop"}, regrade={"sweep": "first"}))
    after = await trials_of(given, "again")
    assert len({json.dumps(each["status"]["rewards"]) for each in before.values()}) > COUNT // 2, "the rewards differ"
    for number, of in before.items():
        assert json.dumps(verdicts(after[number])) == json.dumps(verdicts(of)), after[number]["status"]
        assert after[number]["status"]["regraded"]["uid"] == of["metadata"]["uid"]
        assert await ran_no_agent(given, after[number]["metadata"]["name"])
    for number in ("0", "50", "99"):
        results = [
            await results_of(given, each[number]["metadata"]["name"], tmp_path / f"{kind}-{number}")
            for kind, each in (("before", before), ("after", after))
        ]
        assert json.dumps(results[0]["verifier_result"]) == json.dumps(results[1]["verifier_result"])
