"""Run two operators in one cluster, each with a shard of the trials: the deployed one, and a second release of the chart."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from collections.abc import AsyncIterator

import pytest

from hack.deployment import CHART
from multistep.kube.client import Client
from multistep.kube.resources import NAMESPACES, TRIALS
from multistep.kube.shard import LABEL_SHARD
from tests.e2e.given import DEADLINE_SECONDS, Given, Object, Step, condition, finished, in_agent, trial

IMAGE = os.environ["MULTISTEP_TEST_IMAGE"]
WAITS = "#!/bin/sh\nwhile [ ! -e /tmp/go ]; do sleep 0.1; done\n"


@pytest.fixture
async def shard(given: Given) -> AsyncIterator[str]:
    """Install a second operator for one shard; yield the shard's name, which is also the name of that operator's namespace.

    That operator searches for orphans every second and deletes them without a grace period.
    """
    name = f"shard-{secrets.token_hex(3)}"
    await given.client.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    repository, _, tag = IMAGE.rpartition(":")
    values = {
        "image": {"repository": repository, "tag": tag},
        "crds": {"install": False},
        "results": {"persistence": {"enabled": False}},
        "settings": {"shard": name, "orphansSeconds": 1, "orphansGraceSeconds": 0},
        "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}},
    }
    chosen = [word for key, value in values.items() for word in ("--set-json", f"{key}={json.dumps(value)}")]
    await _helm("install", name, str(CHART), "--namespace", name, *chosen, "--wait", "--timeout", f"{DEADLINE_SECONDS:.0f}s")
    yield name
    await _helm("uninstall", name, "--namespace", name, "--wait")
    await given.client.delete(NAMESPACES, None, name)


async def _helm(*arguments: str) -> None:
    process = await asyncio.create_subprocess_exec("helm", *arguments, stdout=asyncio.subprocess.DEVNULL)
    assert await process.wait() == 0, arguments


def of(shard: str | None, solve: str, name: str) -> Object:
    made = trial(Step("a", solve=solve), name=name)
    made["metadata"]["labels"] = {LABEL_SHARD: shard} if shard else {}
    return made


async def test_each_operator_runs_the_trials_of_its_shard_and_touches_no_others(given: Given, shard: str) -> None:
    await given.applied(of(None, WAITS, "without"))
    await given.applied(of(shard, WAITS, "with"))
    await given.applied(of(f"{shard}-x", "", "nobodys"))
    started = {name: await given.until(name, in_agent) for name in ("without", "with")}

    seen = await text(given.client, shard, "readyz")
    assert f"[+] shard: trials with the label {LABEL_SHARD}={shard}, in all namespaces" in seen
    assert f'shard="{shard}"}} 1.0' in await text(given.client, shard, "metrics")

    for name in started:
        [pod] = await given.pods(name)
        assert pod["metadata"]["uid"] == started[name]["status"]["podUID"]
        await _in_pod(given, pod, "touch", "/tmp/go")
    ended = {name: await given.until(name, finished) for name in started}
    assert {name: each["status"]["rewards"] for name, each in ended.items()} == {name: {"reward": 1.0} for name in started}
    assert [each["status"]["attempt"] for each in ended.values()] == [1, 1]
    assert ended["with"]["status"]["results"].startswith(f"service://{shard}/")
    assert not ended["without"]["status"]["results"].startswith(f"service://{shard}/")

    waiting = await given.get("nobodys")
    assert condition(waiting, "Ready")["reason"] == "NotSeen" and LABEL_SHARD in condition(waiting, "Ready")["message"]
    await given.client.patch(TRIALS, given.namespace, "nobodys", {"metadata": {"labels": {LABEL_SHARD: shard}}})
    taken = await given.until("nobodys", finished)
    assert taken["status"]["results"].startswith(f"service://{shard}/")


async def _in_pod(given: Given, pod: Object, *command: str) -> None:
    name = pod["metadata"]["name"]
    process = await asyncio.create_subprocess_exec("kubectl", "-n", given.namespace, "exec", name, "-c", "main", "--", *command)
    assert await process.wait() == 0


async def text(client: Client, namespace: str, path: str) -> str:
    """Request a path from the operator in this namespace and return the response's body."""
    service = f"/api/v1/namespaces/{namespace}/services/{namespace}-multistep:metrics/proxy/{path}"
    return b"".join([chunk async for chunk in client.raw_stream(service)]).decode()
