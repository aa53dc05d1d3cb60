"""Test suspend, resume and stop."""

from __future__ import annotations

import asyncio
import json

import pytest

from multistep.errors import ClusterError
from tests.e2e.given import Object, condition, finished, holds
from tests.e2e.test_cli import multistep
from tests.simulated.given import HOLD, HOLDS_IN_FIRST_POD, Given, Step, reward, trial

COUNT = "append /tmp/began x\n"
COUNTED = "reward-lines /tmp/began"  # reward: number of agents started in this container


def in_agent(step: str) -> object:
    def reached(found: Object) -> bool:
        steps = (found.get("status") or {}).get("steps") or []
        return bool(steps) and steps[-1]["name"] == step and steps[-1].get("phase") == "Agent"

    return reached


def suspending(found: Object) -> bool:
    """Return whether the operator has seen that it has to suspend the trial after this step."""
    return bool(condition(found, "Reconciling")["reason"] == "Suspending")


def suspended(found: Object) -> bool:
    return holds(found, "Suspended")


async def patched(given: Given, name: str, **spec: object) -> None:
    resource = await given.client.resource_of({"apiVersion": "multistep.dev/v1alpha1", "kind": "MultiStepTrial"})
    await given.client.patch(resource, given.namespace, name, {"spec": spec})


async def test_a_paused_trial_continues_in_its_pod_and_starts_nothing_meanwhile(given: Given) -> None:
    manifest = trial(Step("a", solve=COUNT + HOLD, test=COUNTED), Step("b", solve=COUNT, test=COUNTED))
    name = manifest["metadata"]["name"]
    await given.applied(manifest)
    await given.until(name, in_agent("a"))  # type: ignore[arg-type]
    await patched(given, name, suspend=True)
    await given.until(name, suspending)
    await given.go(name)
    paused = (await given.until(name, suspended))["status"]
    assert (paused["phase"], [step["rewards"] for step in paused["steps"]]) == ("Suspended", [{"reward": 1}])
    (pod,) = await given.pods(name)
    await asyncio.sleep(4)  # fixed wait: the suspended trial must not change
    assert (await given.get(name))["status"] == paused
    await patched(given, name, suspend=False)
    done = (await given.until(name, finished))["status"]
    assert [step["rewards"] for step in done["steps"]] == [{"reward": 1}, {"reward": 2}]
    assert done["steps"][0] == paused["steps"][0]
    assert (done["podUID"], done["attempt"], done.get("attempts", [])) == (pod["metadata"]["uid"], 1, [])
    reported = await given.reported(name, "TrialComplete")
    assert (reported.count("Suspended"), reported.count("Resumed")) == (1, 1)


async def test_a_released_trial_holds_no_pod_and_restarts(given: Given) -> None:
    manifest = trial(
        Step("a", solve=COUNT, test=COUNTED),
        Step("b", solve=HOLDS_IN_FIRST_POD, test=reward(0.5)),
        suspendPolicy="Release",
        infrastructureRetries=0,
    )
    name = manifest["metadata"]["name"]
    await given.applied(manifest)
    await given.until(name, in_agent("b"))  # type: ignore[arg-type]
    await patched(given, name, suspend=True)
    released = await given.until(name, suspended)
    assert "start at step 1, as attempt 2" in condition(released, "Suspended")["message"]
    await given.without_pods(name)
    await patched(given, name, suspend=False)
    done = (await given.until(name, finished))["status"]
    assert [step["rewards"] for step in done["steps"]] == [{"reward": 1}, {"reward": 0.5}]
    (attempt,) = done["attempts"]
    assert (attempt["reason"], attempt["steps"][0]["rewards"], done["attempt"]) == ("Suspended", {"reward": 1}, 2)


async def test_a_released_trial_with_checkpoints_keeps_its_steps(given: Given) -> None:
    """The next pod has the file that step a's agent wrote, and step a does not run again."""
    manifest = trial(
        Step("a", solve=COUNT, test=COUNTED),
        Step("b", solve=HOLDS_IN_FIRST_POD, test=COUNTED),
        suspendPolicy="Release",
        infrastructureRetries=0,
        checkpoints={"policy": "AfterStep"},
    )
    name = manifest["metadata"]["name"]
    await given.applied(manifest)
    before = await given.until(name, in_agent("b"))  # type: ignore[arg-type]
    await patched(given, name, suspend=True)
    released = await given.until(name, suspended)
    assert "continue after step a, as attempt 2" in condition(released, "Suspended")["message"]
    await given.without_pods(name)
    await patched(given, name, suspend=False)
    done = (await given.until(name, finished))["status"]
    assert [step["rewards"] for step in done["steps"]] == [{"reward": 1}, {"reward": 1}]
    assert done["steps"][0] == before["status"]["steps"][0]
    assert (done["resumed"]["attempts"], done["attempt"], [each["reason"] for each in done["attempts"]]) == ([1], 2, ["Suspended"])


async def test_a_prestarted_trial_starts_in_the_pod_that_was_ready(given: Given) -> None:
    manifest = trial(Step("a", test=reward(0.5)), suspend=True, prestart=True)
    name = manifest["metadata"]["name"]
    await given.applied(manifest)
    ready = (await given.until(name, suspended_with_pod))["status"]
    assert ("steps" not in ready or ready["steps"] == []) and ready["nodeName"]
    await patched(given, name, suspend=False)
    done = (await given.until(name, finished))["status"]
    assert (done["rewards"], done["podUID"], done.get("attempts", [])) == ({"reward": 0.5}, ready["podUID"], [])


def suspended_with_pod(found: Object) -> bool:
    return suspended(found) and condition(found, "Suspended")["reason"] == "Paused"


async def test_stop_ends_a_trial_for_good_and_its_agent_with_it(given: Given) -> None:
    manifest = trial(Step("a"), Step("b", solve=HOLD), podCleanup="Never")
    name = manifest["metadata"]["name"]
    await given.applied(manifest)
    await given.until(name, in_agent("b"))  # type: ignore[arg-type]
    code, out, err = await multistep("stop", name, "-n", given.namespace, "-o", "json")
    assert code == 0, err
    (document,) = json.loads(out)
    assert document["why"].startswith("Stopped") and f"{name}: stopping" in err
    stopped = document["status"]
    assert (stopped["phase"], "rewards" in stopped, stopped["steps"][0]["rewards"]) == ("Failed", False, {"reward": 1})
    await given.without_pods(name)
    code, _, err = await multistep("stop", name, "-n", given.namespace)
    assert code == 0 and "is Failed already" in err


async def test_a_stop_cannot_be_taken_back(given: Given) -> None:
    manifest = trial(Step("a"), suspend=True)
    name = manifest["metadata"]["name"]
    await given.applied(manifest)
    await given.until(name, suspended)
    await patched(given, name, stop=True)
    for change in ({"stop": False}, {"stop": None}):
        with pytest.raises(ClusterError, match="stop cannot be set back to false"):
            await patched(given, name, **change)
    assert condition(await given.until(name, finished), "Failed")["reason"] == "Stopped"
    assert await given.pods(name) == []


async def test_a_trial_can_be_followed_by_show(given: Given) -> None:
    manifest = trial(Step("a", solve=HOLD))
    name = manifest["metadata"]["name"]
    await given.applied(manifest)
    following = asyncio.create_task(multistep("show", "--follow", name, "-n", given.namespace))
    await given.until(name, in_agent("a"))  # type: ignore[arg-type]
    await given.go(name)
    code, out, err = await following
    assert code == 0, err
    assert "Complete" in out
