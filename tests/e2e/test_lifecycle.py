"""Test a trial as a Kubernetes user sees it: kubectl, deletion in every phase, many at once."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from multistep.errors import NotFound
from tests.e2e.given import DEADLINE_SECONDS, IMAGE, Given, Object, Step, finished, in_agent, reward, trial
from tests.e2e.operators import samples, without_deployed
from tests.support.waiting import eventually

EXAMPLE = Path(__file__).parents[2] / "examples" / "inline-trial.yaml"
FAILING = {"name": "command", "command": ["false"]}
SLEEP = "#!/bin/sh\nsleep 600\n"
STAYS_PENDING = {
    **{"name": "mine", "image": IMAGE, "imagePullPolicy": "IfNotPresent"},
    "command": ["sh", "-c", "trap exit TERM; while :; do sleep 1; done"],
}


async def kubectl(given: Given, *arguments: str) -> str:
    """Run kubectl, assert that it succeeds, and return its output."""
    process = await asyncio.create_subprocess_exec(
        "kubectl", "-n", given.namespace, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return out.decode()


async def test_kubectl_applies_waits_lists_and_describes_the_example(given: Given) -> None:
    await kubectl(given, "apply", "-f", str(EXAMPLE))
    await kubectl(given, "wait", "--for=condition=Complete", "mst/hello-inline", f"--timeout={DEADLINE_SECONDS:.0f}s")
    await given.reported("hello-inline", "TrialComplete")
    header, row = (await kubectl(given, "get", "mst")).splitlines()
    assert header.split() == ["NAME", "TASK", "AGENT", "PHASE", "STEPS", "OUTCOME", "SCORE", "REWARD", "FAILURE", "AGE"]
    assert row.split()[:4] == ["hello-inline", "hello-inline", "oracle", "Complete"]
    assert row.split()[5:8] == ["Passed", "1", "1"]
    described = await kubectl(given, "describe", "mst", "hello-inline")
    for reason in ("PodCreated", "StepStarted", "StepCompleted", "TrialComplete"):
        assert reason in described
    assert "unchanged" in await kubectl(given, "apply", "-f", str(EXAMPLE))


async def test_each_transition_is_reported_by_one_event(given: Given) -> None:
    done = await given.ended(trial(Step("a"), Step("b")))
    reasons = await given.reported(done["metadata"]["name"], "TrialComplete")
    expected = ["PodCreated", "StepStarted", "StepCompleted", "StepCompleted", "TrialComplete"]
    assert sorted(reasons) == sorted(expected)


def _pending(found: Object) -> bool:
    return (found.get("status") or {}).get("phase") == "Pending"


@pytest.mark.parametrize("reached", [lambda _: True, _pending, in_agent, finished], ids=["new", "pending", "agent", "finished"])
async def test_deleting_a_trial_removes_its_pod_within_seconds(given: Given, reached: object) -> None:
    solve = SLEEP if reached is in_agent else "#!/bin/sh\n"
    template = {"spec": {"initContainers": [STAYS_PENDING]}} if reached is _pending else {}
    manifest = trial(Step("a", solve=solve), podCleanup="Never", environment={"image": IMAGE, "podTemplate": template})
    name = manifest["metadata"]["name"]
    await given.applied(manifest)
    await given.until(name, reached)  # type: ignore[arg-type]
    await given.deleted(name)
    await given.without_pods(name)


async def test_the_spec_is_immutable_but_for_what_may_change(given: Given) -> None:
    done = await given.ended(trial(Step("a")))
    name = done["metadata"]["name"]
    await kubectl(given, "patch", "mst", name, "--type=merge", "-p", json.dumps({"spec": {"suspend": True}}))
    with pytest.raises(AssertionError, match="cannot be changed"):
        await kubectl(given, "patch", "mst", name, "--type=merge", "-p", json.dumps({"spec": {"agent": {"name": "nop"}}}))


async def test_thirty_trials_at_once_each_get_their_own_reward(given: Given) -> None:
    rewards = {f"many-{number}": number / 100 for number in range(30)}
    manifests = [trial(Step("a", test=reward(value)), Step("b", test=reward(value)), name=name) for name, value in rewards.items()]
    done = await asyncio.gather(*(given.ended(manifest) for manifest in manifests))
    assert (await samples(given.client))["multistep_threads"] < 20  # the threads of the event loop, the unpackers and the resolver
    got = {each["metadata"]["name"]: each["status"]["rewards"]["reward"] for each in done}
    assert got == pytest.approx(rewards)


SLEEPS_UNTIL_GO = "#!/bin/sh\nwhile [ ! -e /tmp/go ]; do sleep 1; done\n"  # polls once per second to save CPU


@pytest.mark.alone
async def test_no_exec_stream_stays_open_while_agents_sleep(given: Given) -> None:
    """While ten agents sleep until Given.go, the operator must keep no exec session open."""
    names = [f"sleeper-{number}" for number in range(10)]
    for name in names:
        await given.applied(trial(Step("a", solve=SLEEPS_UNTIL_GO), name=name))
    for name in names:
        await given.until(name, in_agent)

    async def none_open() -> bool:
        return not (await samples(given.client))["multistep_exec_sessions_open"]

    await eventually(none_open)
    assert all([in_agent(await given.get(name)) for name in names])
    for name in names:
        await given.go(name)
    done = await asyncio.gather(*(given.until(name, finished) for name in names))
    assert [each["status"]["rewards"] for each in done] == [{"reward": 1.0}] * 10


# -- changes while no operator runs


@pytest.mark.alone
async def test_changes_while_the_operator_is_away_are_reconciled(given: Given) -> None:
    """While no operator runs, one trial is deleted, one deleted and recreated, one exceeds its deadline, and one its TTL."""
    sleepy = Step("a", solve="#!/bin/sh\nsleep 600\n")
    await given.applied(trial(sleepy, name="deleted"))
    await given.applied(trial(sleepy, name="remade"))
    await given.applied(trial(sleepy, name="late"))
    for name in ("deleted", "remade", "late"):
        await given.until(name, in_agent)
    await given.ended(trial(Step("a"), name="old"))
    with without_deployed():
        await given.changed("late", activeDeadlineSeconds=1)  # set only now: the deadline must pass while no operator runs
        await given.changed("old", ttlSecondsAfterFinished=1)
        for name in ("deleted", "remade"):
            await given.deleted(name)
        await given.applied(trial(Step("a", test=reward(0.75)), name="remade"))  # the old pod may still be terminating
        await given.without_pods("deleted")
    remade = await given.until("remade", finished)
    assert (remade["status"]["rewards"], remade["status"]["attempt"]) == ({"reward": 0.75}, 1)
    late = await given.until("late", finished)
    assert [each["reason"] for each in late["status"]["conditions"] if each["status"] == "True"] == ["DeadlineExceeded"] * 2
    await given.without_pods("late")

    async def old_is_gone() -> bool:
        return not await _there(given, "old")

    await given.when(old_is_gone)
    assert not await _there(given, "deleted") and await given.pods("deleted") == []


async def _there(given: Given, name: str) -> bool:
    try:
        await given.get(name)
    except NotFound:
        return False
    return True


async def test_the_deadline_bounds_what_never_starts_and_what_backs_off(given: Given) -> None:
    nowhere = {"image": "debian:bookworm-slim", "podTemplate": {"spec": {"nodeSelector": {"no": "such-node"}}}}
    await given.applied(trial(Step("a"), name="unschedulable", environment=nowhere, activeDeadlineSeconds=4))
    await given.applied(
        trial(Step("a"), name="no-task", variables=[{"name": "X", "valueFrom": {"secretKeyRef": {"name": "n", "key": "k"}}}])
    )
    found = await given.until("unschedulable", finished)
    assert [each["reason"] for each in found["status"]["conditions"] if each["status"] == "True"] == ["DeadlineExceeded"] * 2
    await given.without_pods("unschedulable")
    await given.until("no-task", _pending)
    await given.deleted("no-task")


async def test_a_finished_pod_is_kept_as_long_as_the_spec_sets(given: Given) -> None:
    always, failed = (
        trial(Step("a"), name="kept-a-while", podTTLSecondsAfterFinished=600),
        trial(Step("a", solve="#!/bin/sh\nexit 1\n"), name="kept-on-failure", podCleanup="OnSuccess", agent=FAILING),
    )
    await given.ended(always)
    assert len(await given.pods("kept-a-while")) == 1
    await given.ended(failed)
    assert len(await given.pods("kept-a-while")) == 1
    await given.changed("kept-a-while", podTTLSecondsAfterFinished=6)
    await given.without_pods("kept-a-while")
    assert len(await given.pods("kept-on-failure")) == 1
