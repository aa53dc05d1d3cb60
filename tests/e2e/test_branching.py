"""Test trials that start from another trial's checkpoint or from the reference state, on the real cluster."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from multistep.kube.resources import TRIALS
from tests.e2e.given import DEADLINE_SECONDS, WAITS, Given, Step, condition, finished, in_agent, trial
from tests.e2e.operators import DEPLOYMENT, SYSTEM, kubectl, require_alone

CONFIG = {"environment": {"workdir": "/app"}}
KEEP: dict[str, Any] = {"checkpoints": {"policy": "AfterStep", "keep": "WithResults"}}
# A test whose reward is the number of files in /srv: the agent of each step adds one.
COUNT = "#!/bin/sh\nls -l /srv\nls /srv | wc -l > /logs/verifier/reward.txt\n"
# An agent that creates the file /srv/$OWN, and lists the files of /srv in /srv/.seen.
ADD: dict[str, Any] = {"agent": {"name": "command", "command": ["sh", "-c", "echo $OWN > /srv/$OWN; ls /srv > /srv/.seen"]}}
# A test that writes two digests of the environment's files: one without and one with modification times. These times
# differ after each run of a solution. The digests exclude the runner's files, the directories of agents and verifiers, and mounts.
LIST = r"""#!/bin/bash
left_out=(-path /proc)
for each in /sys /dev /tmp /logs /run /tests /solution /multistep /etc/hosts /etc/hostname /etc/resolv.conf; do
  left_out+=(-o -path $each)
done
list() {
  find / -xdev \( "${left_out[@]}" \) -prune -o -type d -printf '%p %y %m %U %G\n' \
    -o -printf "%p %y %m %U %G %s %l %n $1\n" | LC_ALL=C sort
  find / -xdev \( "${left_out[@]}" \) -prune -o -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum
}
digest() { echo $((16#$(list "$1" | sha256sum | cut -c 1-13))); }
echo "{\"reward\": 1, \"files\": $(digest), \"timed\": $(digest %T@)}" > /logs/verifier/reward.json
"""


def solve(name: str) -> str:
    return f"#!/bin/sh\necho {name} > /srv/{name}\n"


def base(**spec: Any) -> dict[str, Any]:
    return trial(*(Step(name, solve=solve(name), test=COUNT) for name in ("one", "two", "three")), config=CONFIG, **spec)


def branch(of: str, step: str, own: str, **spec: Any) -> dict[str, Any]:
    agent = {**ADD["agent"], "env": [{"name": "OWN", "value": own}]}
    return base(**{"from": {"trial": of, "step": step}, "agent": agent, **spec})


def steps_of(found: dict[str, Any]) -> list[tuple[str, str | None, float]]:
    """Return for each step its name, the other trial that ran it (None if this trial did), and its reward."""
    return [(each["name"], each.get("trial"), each["rewards"]["reward"]) for each in found["status"]["steps"]]


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


async def test_a_branch_can_be_branched_and_its_source_deleted(given: Given) -> None:
    made = await given.ended(base(**KEEP))
    first = await given.ended(branch(made["metadata"]["name"], "one", "first", toStep="two", **KEEP))
    for each in (made, first):
        await given.deleted(each["metadata"]["name"])
    second = await given.ended(branch(first["metadata"]["name"], "two", "second"))
    ran_by = [("one", made["metadata"]["name"], 1), ("two", first["metadata"]["name"], 2), ("three", None, 3)]
    assert steps_of(second) == ran_by, second["status"]


async def test_the_reference_state_is_what_the_oracle_leaves_and_is_played_once(given: Given) -> None:
    made = trial(
        Step("one", solve="#!/bin/sh\nmkdir /srv/a && cp -r /usr/share/base-files /srv/a && rm /etc/issue\n", test=LIST),
        Step("two", solve="#!/bin/sh\nmv /srv/a /srv/b && ln -s b /srv/a && chmod 4711 /srv/b\n", test=LIST),
        Step("three", solve="#!/bin/sh\ntrue\n", test=LIST),
        config=CONFIG,
    )
    oracle = await given.ended({**made, "spec": {**made["spec"], "toStep": "two"}})
    nop = {**made["spec"], "agent": {"name": "nop"}, "fromStep": "three"}
    found = await asyncio.gather(
        *(given.ended({**made, "metadata": {"name": f"start-{number}"}, "spec": nop}) for number in range(2))
    )
    left = oracle["status"]["steps"][-1]["rewards"]["files"]
    for each in found:
        steps = each["status"]["steps"]
        assert [step["rewards"]["files"] for step in steps[1:]] == [left, left], each["status"]
        assert steps[2]["rewards"]["timed"] == steps[1]["rewards"]["timed"], "restored, and not played again"
        assert [step.get("trial") for step in steps] == [each["status"]["startedFrom"]["trial"]] * 2 + [None]
    references = await given.client.list_all(TRIALS, given.namespace, label_selector="multistep.dev/reference")
    assert [each["metadata"]["name"] for each in references] == [found[0]["status"]["startedFrom"]["trial"]]
    await given.deleted(references[0]["metadata"]["name"])
    later = await given.ended({**made, "metadata": {"name": "start-later"}, "spec": nop})
    assert later["status"]["startedFrom"] == found[0]["status"]["startedFrom"], "from the deleted reference trial's results"


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


@pytest.mark.long
@pytest.mark.alone
async def test_a_trial_waits_for_its_active_source_also_over_a_restart_of_the_operator(given: Given) -> None:
    require_alone()
    steps = (Step("one", solve=solve("one"), test=COUNT), Step("two", solve=WAITS, test=COUNT), Step("three", test=COUNT))
    source = (await given.applied(trial(*steps, config=CONFIG, **KEEP)))["metadata"]["name"]
    await given.until(source, lambda each: in_agent(each) and each["status"]["currentStep"] == "two")
    made = branch(source, "two", "own")
    made["spec"]["task"] = trial(*steps, config=CONFIG)["spec"]["task"]
    name = (await given.applied(made))["metadata"]["name"]
    await given.until(name, lambda each: any(held["reason"] == "SourceNotReady" for held in each["status"].get("conditions", [])))
    await asyncio.to_thread(kubectl, "-n", SYSTEM, "rollout", "restart", DEPLOYMENT)
    await asyncio.to_thread(kubectl, "-n", SYSTEM, "rollout", "status", DEPLOYMENT, f"--timeout={DEADLINE_SECONDS:.0f}s")
    await given.go(source)
    found = await given.until(name, finished)
    assert steps_of(found) == [("one", source, 1), ("two", source, 1), ("three", None, 2)], found["status"]
