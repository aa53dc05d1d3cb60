"""``make chaos``: trials while the operator is killed, pods are deleted, and parts of the cluster restart.

Each step counts its own runs in the pod; a count other than one gives a wrong reward. In the end every trial must be
Complete with its own reward, or, when its pod was taken too often, Failed for that reason and without any; and no pod
may be left.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import secrets
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress

from multistep.cluster.client import Client
from multistep.cluster.pods import LABEL_TRIAL
from multistep.errors import ClusterError
from tests.e2e.given import Given, Object, Step, condition, finished, holds, trial

OPERATOR_NAMESPACE = "multistep-system"
OPERATOR_SELECTOR = "app.kubernetes.io/name=multistep"
STEPS = ("one", "two", "three")
RETRIES = 4
PAUSE_SECONDS = (2.0, 6.0)  # between two blows
ORPHANS_SECONDS = 60.0

Blow = Callable[[], Awaitable[str]]


def counted_trial(number: int) -> Object:
    """A trial whose reward is its number, if each step ran once in this pod."""
    return trial(*(_counted_step(name, number) for name in STEPS), name=f"chaos-{number}", infrastructureRetries=RETRIES)


def _counted_step(name: str, number: int) -> Step:
    count = f"/tmp/{name}.count"
    solve = f"#!/bin/sh\necho run >> {count}\nsleep {random.uniform(0.5, 6):.1f}\n"
    test = f"#!/bin/sh\n[ $(wc -l < {count}) = 1 ] && reward={number} || reward=-1\necho $reward > /logs/verifier/reward.txt\n"
    return Step(name, solve=solve, test=test)


class Storm:
    """Blows at random moments, counted by kind. deletions: how many pods may be deleted at most."""

    def __init__(self, given: Given, *, deletions: int, restarts: bool, seed: int) -> None:
        self._given = given
        self._random = random.Random(seed)
        self._deletions = deletions
        self._restarts = ["apiserver", "containerd"] if restarts else []
        self.count: Counter[str] = Counter()

    async def rage(self) -> None:
        """Strike until cancelled."""
        while True:
            await asyncio.sleep(self._random.uniform(*PAUSE_SECONDS))
            with suppress(ClusterError):  # the API server may be what was struck
                self.count[await self._next()()] += 1

    def _next(self) -> Blow:
        roll = self._random.random()
        if self._restarts and roll < 0.1:
            return self._restart
        return self._delete_pod if self._deletions and roll < 0.4 else self._kill_operator

    async def _kill_operator(self) -> str:
        for pod in await self._given.client.list_pods(OPERATOR_NAMESPACE, label_selector=OPERATOR_SELECTOR):
            await self._given.client.delete_pod(OPERATOR_NAMESPACE, pod["metadata"]["name"], grace_period_seconds=0)
        return "operator killed"

    async def _delete_pod(self) -> str:
        pods = await self._given.client.list_pods(self._given.namespace, label_selector=LABEL_TRIAL)
        if not pods:
            return "nothing"
        self._deletions -= 1
        await self._given.client.delete_pod(self._given.namespace, self._random.choice(pods)["metadata"]["name"])
        return "trial pod deleted"

    async def _restart(self) -> str:
        component = self._restarts.pop()
        process = await asyncio.create_subprocess_exec(sys.executable, "-m", "localkube", "restart", component)
        await process.wait()
        return f"{component} restarted"


def verdict(found: Object) -> str:
    """Why a finished trial is wrong; "" if it is right."""
    name, status = found["metadata"]["name"], found["status"]
    if holds(found, "Failed"):
        return f"{name} is Failed, and has rewards {status['rewards']}" if "rewards" in status else _too_often(found)
    expected = {"reward": float(name.rpartition("-")[2])}
    if status.get("rewards") != expected or [step["name"] for step in status["steps"]] != list(STEPS):
        return f"{name} has {status.get('rewards')} in {len(status['steps'])} steps, not {expected}"
    return ""


def _too_often(found: Object) -> str:
    lost = found["status"].get("attempts") or []
    known = {"PodDeleted", "ContainerEnded", "ContainerStatusUnknown", "DeletionByTaintManager", "TerminationByKubelet"}
    if len(lost) == RETRIES + 1 and all(each["reason"] in known for each in lost):
        return ""
    message = condition(found, "Failed")["message"]
    return f"{found['metadata']['name']} is Failed after {[each['reason'] for each in lost]}: {message}"


async def run(trials: int, *, restarts: bool, seed: int) -> int:
    """The storm over some trials. Returns an exit code."""
    async with await Client.connect() as client:
        given = Given(client, f"chaos-{secrets.token_hex(3)}")
        space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": given.namespace}}
        await client.create(space)
        try:
            return await _storm_over(given, trials, restarts=restarts, seed=seed)
        finally:
            await client.delete(await client.resource_of(space), None, given.namespace)


async def _storm_over(given: Given, trials: int, *, restarts: bool, seed: int) -> int:
    started = time.monotonic()
    for number in range(trials):
        await given.applied(counted_trial(number))
    storm = Storm(given, deletions=trials // 2, restarts=restarts, seed=seed)
    raging = asyncio.create_task(storm.rage())
    try:
        ended = await asyncio.gather(*(_ended(given, f"chaos-{number}") for number in range(trials)))
    finally:
        raging.cancel()
    wrong = [text for text in map(verdict, ended) if text]
    orphans = await _orphans(given)
    attempts = sum(len(each["status"].get("attempts") or []) for each in ended)
    phases = Counter(each["status"]["phase"] for each in ended)
    print(f"{trials} trials in {time.monotonic() - started:.0f} s: {dict(phases)}, {attempts} attempts lost; {dict(storm.count)}")
    print("\n".join([*wrong, *(f"orphan: {name}" for name in orphans)]) or "every reward is right, none is left over")
    return 1 if wrong or orphans else 0


async def _ended(given: Given, name: str) -> Object:
    while True:  # the API server may be away for a while
        with suppress(ClusterError):
            return await given.until(name, finished, seconds=1200)
        await asyncio.sleep(1)


async def _orphans(given: Given) -> list[str]:
    deadline = time.monotonic() + ORPHANS_SECONDS
    while (left := await given.client.list_pods(given.namespace, label_selector=LABEL_TRIAL)) and time.monotonic() < deadline:
        await asyncio.sleep(1)
    return [pod["metadata"]["name"] for pod in left]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--no-restarts", action="store_true", help="leave API server and containerd alone")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6))
    options = parser.parse_args()
    print(f"seed {options.seed}", file=sys.stderr)
    sys.exit(asyncio.run(run(options.trials, restarts=not options.no_restarts, seed=options.seed)))


if __name__ == "__main__":
    main()
