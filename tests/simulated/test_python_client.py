"""Test the Python client: trials in the order in which they finish, their files, and a client that is
killed."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from multistep import AsyncClient, Client
from multistep.client.trl import TrialReward
from multistep.kube.resources import PODS
from tests.e2e.given import condition, holds
from tests.simulated.given import NO_IMAGE, Given, Step, reward, trial

SOLVED = "reward-if /tmp/solved yes"
SOLVE = "write /tmp/solved yes"
FOR_EVER = {"name": "stuck", "agent": {"name": "command", "command": ["hold"]}}
CLIENT = """
import json, sys, time
from multistep import Client
with Client(namespace=sys.argv[1]) as client:
    run = client.submit([json.loads(sys.argv[2])], agents=[json.loads(sys.argv[3])], attempts=2, name="orphan", lease_seconds=45)
    print("submitted", flush=True)
    time.sleep(600)  # as a trainer that computes; the test kills it
"""


@pytest.fixture
def given(unsharded: Given) -> Given:
    """Let the deployed operator run the trials, because the client gives a sweep no labels."""
    return unsharded


def task(given: Given, name: str, *steps: Step) -> dict[str, Any]:
    """Return an entry of spec.tasks."""
    return {"name": name, "inline": trial(*steps)["spec"]["task"]["inline"], "environment": given.environment}


async def test_rollouts_have_rewards_by_step_and_those_that_cannot_run_are_masked(given: Given) -> None:
    lost = {**task(given, "lost", Step("a", test=reward(1))), "environment": given.placed({"image": NO_IMAGE})}
    two = task(given, "two", Step("a", solve=SOLVE, test=SOLVED), Step("b", test=reward(0.5)))
    spec = {"overrides": [{"tasks": ["lost"], "spec": {"environmentTimeoutMultiplier": 0.01}}]}
    async with AsyncClient(namespace=given.namespace) as client:
        run = await client.submit([two, lost], agents=["oracle", "nop"], spec=spec)
        found = {(each.task, each.agent): each async for each in run}
        assert found.keys() == {(name, agent) for name in ("two", "lost") for agent in ("oracle", "nop")}
        solved, idle = found["two", "oracle"], found["two", "nop"]
        assert (solved.valid, solved.reward, [each.score for each in solved.steps]) == (True, 0.75, [1.0, 0.5])
        assert (idle.valid, idle.reward, idle.passed) == (True, 0.25, False)
        for agent in ("oracle", "nop"):
            masked = found["lost", agent]
            assert (masked.valid, masked.reward, masked.outcome) == (False, None, "Excluded"), masked
        result = json.loads(await client.file(solved, "result.json"))
        assert result["verifier_result"]["rewards"] == {"reward": 0.75}
        assert (await run.status()).lease is not None


async def test_killing_the_client_leaves_no_pod(given: Given, tmp_path: Path) -> None:
    arguments = [given.namespace, json.dumps(task(given, "t", Step("a", test=reward(1)))), json.dumps(FOR_EVER)]
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", CLIENT, *arguments, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None and await process.stdout.readline() == b"submitted\n"
        await given.sweep_until("orphan", lambda sweep: sweep["status"]["trials"].get("running") == 2)
        await given.sweep_until("orphan", lambda sweep: bool(sweep["status"]["lease"]["renewal"]))
    finally:
        process.send_signal(signal.SIGKILL)
        await process.wait()
    ended = await given.sweep_until("orphan", lambda sweep: holds(sweep, "Failed"))
    assert condition(ended, "Failed")["reason"] == "LeaseExpired"
    assert ended["status"]["excluded"] == {"User": 2}

    async def no_pods() -> bool:
        return not await given.client.list_all(PODS, given.namespace)

    await given.when(no_pods)


async def test_completions_of_a_policy_are_rewarded_in_groups(given: Given) -> None:
    """A trainer's code is synchronous, so it calls the blocking client; here it runs in a thread."""
    solved = json.dumps(task(given, "t", Step("a", test=SOLVED)))
    completions = ["write /tmp/solved yes", "write /tmp/solved no", "exit 3", "print '$HOME ${NONE}'\nwrite /tmp/solved yes"]

    def train() -> list[float | None]:
        with Client(namespace=given.namespace) as client:
            return TrialReward(client, ["play"], parallelism=4)(completions=completions, task=[solved] * len(completions))

    assert await asyncio.to_thread(train) == [1.0, 0.0, 0.0, 1.0]
