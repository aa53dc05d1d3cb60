"""Test behaviour that needs a second node: loss of that node, and its idle timeouts of exec streams."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from multistep.errors import StreamLost
from tests.e2e.given import (
    IMAGE,
    STAYS_IN_FIRST_POD,
    WAITS,
    Given,
    Object,
    Step,
    condition,
    finished,
    holds,
    in_agent,
    reward,
    trial,
)
from tests.e2e.operators import on_this_machine, without_deployed
from tests.support.cutter import Cutter, listening
from tests.support.machine import localkube
from tests.support.waiting import eventually

pytestmark = [pytest.mark.alone, pytest.mark.long]

NODE = "node2"
STREAM_IDLE_SECONDS = 3  # idle timeout of the node's containerd and kubelet; less than the 5 s between the API server's pings
PROXY_IDLE_SECONDS = 3.0
SILENT_SECONDS = 20
LINES = 700_000  # lines that the agent prints, about 4.8 MB


@pytest.fixture(scope="module")
def _nodes() -> Iterator[None]:
    yield
    asyncio.run(localkube("node-remove", NODE))


@pytest.fixture
async def second_node(_nodes: None) -> AsyncIterator[str]:
    """Start a second node and wait until it accepts pods."""
    await localkube("node-add", NODE, "--stream-idle", str(STREAM_IDLE_SECONDS))
    yield NODE


def on_node(node: str, **spec: Any) -> Object:
    """Return the environment of a trial whose pod requires this node."""
    return {"image": IMAGE, "podTemplate": {"spec": {"nodeSelector": {"kubernetes.io/hostname": node}, **spec}}}


def rather_on_node(node: str, **spec: Any) -> Object:
    """Return the environment of a trial whose pod prefers this node."""
    is_it = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}
    preferred = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "preference": is_it}]}
    return {"image": IMAGE, "podTemplate": {"spec": {"affinity": {"nodeAffinity": preferred}, **spec}}}


LEAVES_AT_ONCE = {
    "tolerations": [
        {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 0}
        for key in ("not-ready", "unreachable")
    ]
}


async def test_a_trial_on_a_lost_node_restarts_on_another_or_fails_with_no_reward(given: Given, second_node: str) -> None:
    """The node is killed: no kubelet reports that its pods terminated, so they stay Terminating."""
    steps = (Step("a", test=reward(0.5)), Step("b", solve=STAYS_IN_FIRST_POD))
    moves = trial(*steps, name="moves", environment=rather_on_node(second_node, **LEAVES_AT_ONCE))
    fails = trial(*steps, name="fails", environment=on_node(second_node, **LEAVES_AT_ONCE), infrastructureRetries=0)
    for manifest in (moves, fails):
        await given.applied(manifest)
    for name in ("moves", "fails"):
        found = await given.until(name, lambda found: in_agent(found) and found["status"]["currentStep"] == "b")
        assert found["status"]["nodeName"] == second_node
    await localkube("node-kill", second_node)

    moved, failed = await asyncio.gather(given.until("moves", finished), given.until("fails", finished))
    assert holds(moved, "Complete") and moved["status"]["attempt"] == 2 and moved["status"]["nodeName"] != second_node
    assert moved["status"]["rewards"] == {"reward": 0.75}
    assert holds(failed, "Failed") and condition(failed, "Failed")["reason"] == "DeletionByTaintManager"
    assert "rewards" not in failed["status"]
    for done in (moved, failed):
        (lost,) = done["status"]["attempts"]
        assert (lost["reason"], lost["nodeName"]) == ("DeletionByTaintManager", second_node)
        assert [each.get("rewards") for each in lost["steps"]] == [{"reward": 0.5}, None]  # the failed attempt keeps its rewards
        (left,) = [each for each in await given.pods(done["metadata"]["name"]) if each["spec"]["nodeName"] == second_node]
        assert left["metadata"]["deletionTimestamp"] and left["metadata"]["name"] == lost["podName"]  # the old pod is Terminating


async def test_a_phase_silent_for_longer_than_every_idle_limit_keeps_all_of_its_output(
    given: Given, second_node: str, tmp_path: Path
) -> None:
    """A proxy cuts connections after 3 s of silence, the node cuts streams after 3 s, and the agent is silent for 20 s."""
    solve = f"#!/bin/sh\necho begins\nsleep {SILENT_SECONDS}\n{WAITS}seq {LINES}\n"
    manifest = trial(Step("a", solve=solve), environment=on_node(second_node))
    name = manifest["metadata"]["name"]
    server = urlsplit(given.client.connection.base_url)
    proxy = Cutter(str(server.hostname), server.port or 443, idle_seconds=PROXY_IDLE_SECONDS)
    with without_deployed():
        async with listening(proxy) as (_, port), on_this_machine(given.namespace, tmp_path, api=f"https://127.0.0.1:{port}"):
            await given.applied(manifest)
            await given.until(name, in_agent)
            before = proxy.idle_cuts
            (pod,) = await given.pods(name)
            await until_silent_exec_is_cut(given, pod["metadata"]["name"])
            assert in_agent(await given.get(name))
            await given.go(name)
            done = await given.until(name, finished)
    assert proxy.idle_cuts > before
    step = done["status"]["steps"][0]
    assert holds(done, "Complete") and step["rewards"] == {"reward": 1.0} and not done["status"].get("attempts")
    assert step["seconds"]["agent"] >= SILENT_SECONDS
    assert read_output(tmp_path) == "begins\n" + "".join(f"{number}\n" for number in range(1, LINES + 1))


def read_output(directory: Path) -> str:
    """Return the agent's output from the stored results."""
    (output,) = directory.glob("results/**/oracle.txt")
    return output.read_text()


async def until_silent_exec_is_cut(given: Given, pod: str) -> None:
    """Repeat the silent command until the node cuts its session between its lines. On a slow machine, the node may do so before the
    first line, or too late."""

    async def cut() -> bool:
        return await answer_of_silent_exec(given, pod) == b"begins\n"

    await eventually(cut)


async def answer_of_silent_exec(given: Given, pod: str) -> bytes:
    """Run a command that prints nothing for three idle timeouts; return its output until the node cuts the exec session."""
    script = f"echo begins; sleep {3 * STREAM_IDLE_SECONDS}; echo wakes"
    stream = await given.client.open_exec(given.namespace, pod, "main", ("sh", "-c", script))
    heard, started = b"", time.monotonic()
    with suppress(StreamLost):
        while chunk := await stream.receive():
            heard += chunk
    print(f"a silent exec was ended after {time.monotonic() - started:.1f} s")
    await stream.close()
    return heard
