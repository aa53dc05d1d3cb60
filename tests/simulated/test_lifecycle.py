"""Test a trial as a Kubernetes user sees it: its Events, deletion in every phase, many at once, and an operator that is away."""

from __future__ import annotations

import asyncio

import pytest

from multistep.errors import ClusterError, NotFound
from tests.e2e.given import Object, finished, in_agent
from tests.simulated.given import HOLD, IMAGE, NO_IMAGE, Given, OwnOperators, Step, reward, trial
from tests.support.simulation.operator import Operator
from tests.support.waiting import eventually


async def test_each_transition_is_reported_by_one_event(given: Given) -> None:
    done = await given.ended(trial(Step("a"), Step("b")))
    reasons = await given.reported(done["metadata"]["name"], "TrialComplete")
    expected = ["PodCreated", "StepStarted", "StepCompleted", "StepCompleted", "TrialComplete"]
    assert sorted(reasons) == sorted(expected)


def _pending(found: Object) -> bool:
    return (found.get("status") or {}).get("phase") == "Pending"


@pytest.mark.parametrize("reached", [lambda _: True, _pending, in_agent, finished], ids=["new", "pending", "agent", "finished"])
async def test_deleting_a_trial_removes_its_pod_within_seconds(given: Given, reached: object) -> None:
    solve = HOLD if reached is in_agent else "# nothing"
    image = NO_IMAGE if reached is _pending else IMAGE
    manifest = trial(Step("a", solve=solve), podCleanup="Never", environment={"image": image})
    name = manifest["metadata"]["name"]
    await given.applied(manifest)
    await given.until(name, reached)  # type: ignore[arg-type]
    await given.deleted(name)
    await given.without_pods(name)


async def test_the_spec_is_immutable_but_for_what_may_change(given: Given) -> None:
    name = (await given.ended(trial(Step("a"))))["metadata"]["name"]
    await given.changed(name, suspend=True)
    with pytest.raises(ClusterError, match="cannot be changed"):
        await given.changed(name, agent={"name": "nop"})


async def test_thirty_trials_at_once_each_get_their_own_reward(given: Given, shared: Operator) -> None:
    rewards = {f"many-{number}": number / 100 for number in range(30)}
    manifests = [trial(Step("a", test=reward(value)), Step("b", test=reward(value)), name=name) for name, value in rewards.items()]
    done = await asyncio.gather(*(given.ended(manifest) for manifest in manifests))
    assert (await shared.samples())["multistep_threads"] < 20  # the threads of the event loop, the unpackers and the resolver
    got = {each["metadata"]["name"]: each["status"]["rewards"]["reward"] for each in done}
    assert got == pytest.approx(rewards)


async def test_no_exec_stream_stays_open_while_agents_sleep(own: OwnOperators) -> None:
    """While ten agents sleep until Given.go, the operator must keep no exec session open."""
    given, operator = own.given, await own.started(linger_seconds="1")
    names = [f"sleeper-{number}" for number in range(10)]
    for name in names:
        await given.applied(trial(Step("a", solve=HOLD), name=name))
    for name in names:
        await given.until(name, in_agent)

    async def none_open() -> bool:
        return not (await operator.samples())["multistep_exec_sessions_open"]

    await eventually(none_open)
    assert all([in_agent(await given.get(name)) for name in names])
    for name in names:
        await given.go(name)
    done = await asyncio.gather(*(given.until(name, finished) for name in names))
    assert [each["status"]["rewards"] for each in done] == [{"reward": 1.0}] * 10


async def test_changes_while_the_operator_is_away_are_reconciled(own: OwnOperators) -> None:
    """While no operator runs, one trial is deleted, one deleted and recreated, one exceeds its deadline, and one its TTL."""
    given, operator = own.given, await own.started()
    for name in ("deleted", "remade", "late"):
        await given.applied(trial(Step("a", solve=HOLD), name=name))
    for name in ("deleted", "remade", "late"):
        await given.until(name, in_agent)
    await given.ended(trial(Step("a"), name="old"))
    await operator.kill()
    await given.changed("late", activeDeadlineSeconds=1)  # set only now: the deadline must pass while no operator runs
    await given.changed("old", ttlSecondsAfterFinished=1)
    for name in ("deleted", "remade"):
        await given.deleted(name)
    await given.applied(trial(Step("a", test=reward(0.75)), name="remade"))  # the old pod may still be terminating
    await given.without_pods("deleted")
    await operator.start()
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
    nowhere = {"image": "simulated", "podTemplate": {"spec": {"nodeSelector": {"no": "such-node"}}}}
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
    failing = {"name": "command", "command": ["exit 1"]}
    always = trial(Step("a"), name="kept-a-while", podTTLSecondsAfterFinished=600)
    failed = trial(Step("a"), name="kept-on-failure", podCleanup="OnSuccess", agent=failing)
    await given.ended(always)
    assert len(await given.pods("kept-a-while")) == 1
    await given.ended(failed)
    assert len(await given.pods("kept-a-while")) == 1
    await given.changed("kept-a-while", podTTLSecondsAfterFinished=6)
    await given.without_pods("kept-a-while")
    assert len(await given.pods("kept-on-failure")) == 1
