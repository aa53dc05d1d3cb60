"""Test two replicas of the operator: one is the leader, the other takes over, and no step runs twice."""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from functools import partial

import pytest

from multistep.errors import NotFound
from multistep.kube.resources import LEASES
from tests.e2e.given import Object, finished, in_agent
from tests.simulated.given import HOLD, Given, OwnOperators, Step, trial
from tests.support.simulation.operator import LEASE, Operator
from tests.support.waiting import eventually

STEPS = ("one", "two", "three", "four")


async def replicas(own: OwnOperators) -> tuple[Operator, Operator]:
    """Start two replicas, and return first the leader."""
    leader = await own.started("first")
    await led_by(own, leader)
    return leader, await own.started("second")


async def lease(own: OwnOperators) -> Object:
    return dict((await own.given.client.get(LEASES, own.shard.name, LEASE))["spec"])


async def led_by(own: OwnOperators, leader: Operator) -> Object:
    """Wait until the replica holds the lease, and return the lease."""

    async def held() -> Object | None:
        with suppress(NotFound):
            found = await lease(own)
            return found if str(found.get("holderIdentity")).startswith(f"{leader.name}_") else None
        return None

    found = await eventually(held)
    assert found
    return found


def counted(name: str) -> Object:
    """Return a trial of which each step's reward is the number of its agent's runs."""
    steps = (Step(step, solve=f"append /tmp/{step} x\n{HOLD}", test=f"reward-lines /tmp/{step}") for step in STEPS)
    return trial(*steps, name=name)


def works(step: str, found: Object) -> bool:
    return in_agent(found) and found["status"]["currentStep"] == step


async def started(given: Given) -> list[str]:
    """Start trials, and return their names when their agents work on the first step."""
    names = [f"led-{number}" for number in range(4)]
    for name in names:
        await given.applied(counted(name))
    for name in names:
        await given.until(name, partial(works, "one"))
    return names


async def end_all(given: Given, names: list[str]) -> None:
    """Let all agents end, and check that each ran once."""
    for step in STEPS:
        for name in names:
            await given.until(name, partial(works, step))
            await given.go(name)
    for name in names:
        status = (await given.until(name, finished))["status"]
        assert status["phase"] == "Complete" and "attempts" not in status
        assert [step["rewards"]["reward"] for step in status["steps"]] == [1] * len(STEPS)


@pytest.mark.long
async def test_a_leader_that_sleeps_past_its_lease_wakes_to_do_nothing_and_ends_itself(own: OwnOperators) -> None:
    leader, standby = await replicas(own)
    names, held = await started(own.given), await lease(own)
    leader.signal(signal.SIGSTOP)
    try:
        taken = await led_by(own, standby)
    finally:
        leader.signal(signal.SIGCONT)  # the former leader wakes up after the new one took over its trials
    assert taken["leaseTransitions"] == held["leaseTransitions"] + 1

    async def ended() -> bool:
        return bool(leader.exit_codes)

    await eventually(ended)
    assert leader.exit_codes[0] == 3
    assert "lost the leader lease; exiting: " in await asyncio.to_thread(leader.log.read_text)
    await end_all(own.given, names)
    assert (await lease(own))["holderIdentity"] == taken["holderIdentity"]


async def test_a_leader_that_is_stopped_hands_over(own: OwnOperators) -> None:
    leader, standby = await replicas(own)
    names, held = await started(own.given), await lease(own)
    stopped, taken = await asyncio.gather(leader.stop(), led_by(own, standby))
    assert (stopped, taken["leaseTransitions"]) == (0, held["leaseTransitions"] + 1)
    assert "stopped and released the lease" in await asyncio.to_thread(leader.log.read_text)
    await end_all(own.given, names)


async def test_a_deleted_lease_is_created_again(own: OwnOperators) -> None:
    leader = await own.started()
    await led_by(own, leader)
    await own.given.client.delete(LEASES, own.shard.name, LEASE)
    await led_by(own, leader)
    assert (await own.given.ended(trial(Step("a"))))["status"]["rewards"] == {"reward": 1.0}
