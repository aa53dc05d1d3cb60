"""Test two replicas of the operator: one is the leader, the other takes over, and no step runs twice."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator

import pytest

from multistep.kube.resources import LEASES
from tests.e2e.given import Given, Object, Step, finished, trial
from tests.e2e.replicas import NAME, NAMESPACE, Replicas

pytestmark = pytest.mark.alone

STEPS = ("one", "two", "three", "four")
SECONDS = 7  # duration of each step; the steps of a trial together take longer than the lease lasts


@pytest.fixture
async def two(given: Given) -> AsyncIterator[Replicas]:
    """Scale to two replicas, and back to one afterwards."""
    replicas = Replicas(given.client)
    await replicas.scale(2)
    try:
        yield replicas
    finally:
        await replicas.scale(1)


def counted(name: str, value: float) -> Object:
    """Return a trial whose reward is `value` if each step ran once, else -1."""
    return trial(*(_counted_step(step, value) for step in STEPS), name=name)


def _counted_step(name: str, value: float) -> Step:
    count = f"/tmp/{name}.count"
    test = f"#!/bin/sh\n[ $(wc -l < {count}) = 1 ] && reward={value} || reward=-1\necho $reward > /logs/verifier/reward.txt\n"
    return Step(name, solve=f"#!/bin/sh\necho run >> {count}\nsleep {SECONDS}\n", test=test)


async def started(given: Given, number: int) -> dict[str, float]:
    """Start this many trials, wait until each has started a step, and return the expected rewards by name."""
    rewards = {f"led-{index}": (index + 1) / 10 for index in range(number)}
    for name, value in rewards.items():
        await given.applied(counted(name, value))
    for name in rewards:
        await given.until(name, lambda found: bool((found.get("status") or {}).get("steps")))
    return rewards


async def assert_all_right(given: Given, rewards: dict[str, float]) -> None:
    for name, value in rewards.items():
        status = (await given.until(name, finished))["status"]
        assert status["phase"] == "Complete" and status["rewards"] == pytest.approx({"reward": value})
        assert [step["rewards"]["reward"] for step in status["steps"]] == pytest.approx([value] * len(STEPS))
        assert not status["attempts"]


async def test_a_leader_that_sleeps_past_its_lease_wakes_to_do_nothing_and_ends_itself(given: Given, two: Replicas) -> None:
    rewards = await started(given, 4)
    asleep, held = await two.leader(), await two.lease()
    two.signal(asleep, signal.SIGSTOP)
    try:
        lease = await two.until_held_by_another(held["holderIdentity"])
    finally:
        two.signal(asleep, signal.SIGCONT)  # the former leader wakes up after the new one took over its trials
    assert lease["leaseTransitions"] == held["leaseTransitions"] + 1
    ended = await two.until_restarted(asleep)
    assert ended["exitCode"] == 3
    assert "lost the leader lease; exiting: " in await two.previous_log(asleep)
    await assert_all_right(given, rewards)
    assert (await two.lease())["holderIdentity"] == lease["holderIdentity"]


async def test_a_leader_that_is_stopped_hands_over(given: Given, two: Replicas) -> None:
    rewards = await started(given, 4)
    leader, held = await two.leader(), await two.lease()
    two.signal(leader, signal.SIGTERM)
    lease, ended = await asyncio.gather(two.until_held_by_another(held["holderIdentity"]), two.until_restarted(leader))
    assert lease["leaseTransitions"] == held["leaseTransitions"] + 1
    assert ended["exitCode"] == 0
    assert "stopped and released the lease" in await two.previous_log(leader)
    await assert_all_right(given, rewards)


async def test_a_deleted_lease_is_created_again(given: Given) -> None:
    replicas = Replicas(given.client)
    await given.client.delete(LEASES, NAMESPACE, NAME)
    await replicas.scale(1)  # there is one replica already: this only waits until it is the leader
    assert (await given.ended(trial(Step("a"))))["status"]["rewards"] == {"reward": 1.0}
