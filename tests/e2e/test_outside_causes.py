"""Cause one real infrastructure failure of each kind: the trial is retried and records the reason, or is not affected."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.e2e.given import (
    STAYS_IN_FIRST_POD,
    WAITS,
    Given,
    Object,
    Step,
    finished,
    holds,
    in_agent,
    reward,
    trial,
)
from tests.support.machine import asleep, kill, processes, without
from tests.support.waiting import eventually

AGENT_SECONDS = 8
RUNNER_SERVES = b"/multistep/runner\0serve\0"
RUNNER_CALLS = b"/multistep/runner\0call\0"


def in_second_step(found: Object) -> bool:
    status = found.get("status") or {}
    return status.get("currentStep") == "b" and status["steps"][-1].get("phase") == "Agent"


def two_steps(second: str = STAYS_IN_FIRST_POD, **spec: Any) -> Object:
    return trial(Step("a", test=reward(0.5)), Step("b", solve=second), **spec)


async def test_a_trial_whose_container_was_killed_starts_again_in_a_new_pod(given: Given) -> None:
    manifest = two_steps()
    name = manifest["metadata"]["name"]
    await given.applied(manifest)
    await given.until(name, in_second_step)
    (pod,) = await given.pods(name)
    assert kill(processes(pod, RUNNER_SERVES)) == 1
    done = await given.until(name, finished)
    (attempt,) = done["status"]["attempts"]
    assert attempt["reason"] == "ContainerEnded" and "status 137" in attempt["message"], attempt
    assert attempt["nodeName"] == "node1" and attempt["podUID"] != done["status"]["podUID"]
    assert holds(done, "Complete") and done["status"]["rewards"] == {"reward": 0.75} and "failure" not in done["status"]


ONCE = f"#!/bin/sh\necho x >> /tmp/agent\n{WAITS}printf out\n"
WAS_ONCE = """#!/bin/sh
echo x >> /tmp/tests; while [ ! -e /tmp/judge ]; do sleep 0.1; done
[ "$(cat /tmp/agent /tmp/tests)" = "$(printf 'x\\nx')" ] && echo 1 > /logs/verifier/reward.txt
"""


async def cut(given: Given, name: str, times: int) -> None:
    """Kill this many of the trial's exec sessions. The runner is suspended meanwhile, so that no session finishes first."""
    serving = await eventually(lambda: in_containers(given, name, RUNNER_SERVES))
    killed = set[int]()

    async def killed_often() -> bool:
        found = set(await in_containers(given, name, RUNNER_CALLS)) - killed  # a killed process may take a while to end
        kill([*found])
        killed.update(found)
        return len(killed) >= times

    with asleep(serving):
        await eventually(killed_often)


async def in_containers(given: Given, name: str, command: bytes) -> list[int]:
    pods = [each for each in await given.pods(name) if each["status"].get("containerStatuses")]
    return [pid for pod in pods for pid in processes(pod, command)]


async def test_a_trial_whose_streams_are_cut_in_the_container_continues_and_does_nothing_twice(given: Given) -> None:
    manifest = trial(Step("a", solve=ONCE, test=WAS_ONCE))
    name = manifest["metadata"]["name"]
    await given.applied(manifest)
    await given.until(name, lambda found: "podUID" in (found.get("status") or {}))
    await cut(given, name, 2)  # only twice: each kill makes the operator wait longer before the next retry
    await given.until(name, in_agent)
    await given.go(name)
    await cut(given, name, 2)
    await given.until(name, lambda found: found["status"]["steps"][-1].get("phase") == "Verifier")
    await given.in_pod(name, "touch", "/tmp/judge")
    found = await given.until(name, finished)
    assert holds(found, "Complete") and found["status"]["rewards"] == {"reward": 1.0}
    assert found["status"]["attempt"] == 1 and not found["status"].get("attempts")


@pytest.mark.long
@pytest.mark.alone
async def test_while_the_api_server_is_away_the_pod_runs_on_and_then_the_trial_too(given: Given) -> None:
    manifest = two_steps(f"#!/bin/sh\nsleep {AGENT_SECONDS}\n")
    name = manifest["metadata"]["name"]
    await given.applied(manifest)
    before = await given.until(name, in_second_step)
    async with without("apiserver"):
        await asyncio.sleep(AGENT_SECONDS)  # fixed wait: without an API server nothing can report that the agent finished
    done = await given.until(name, finished)
    status = done["status"]
    assert holds(done, "Complete") and status["rewards"] == {"reward": 0.75}
    assert (status["attempt"], status["podUID"]) == (1, before["status"]["podUID"]) and not status.get("attempts")
