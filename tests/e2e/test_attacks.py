"""Attack the operator with hostile tasks and agents in the real cluster: the attacks cost only their own trials."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator

import pytest

from multistep.kube.resources import NAMESPACES, PODS
from tests.e2e.given import (
    WAITS,
    Given,
    Step,
    condition,
    finished,
    holds,
    in_agent,
    made_namespace,
    trial,
)
from tests.e2e.operators import SYSTEM

CONNECTIONS = 100  # the runner has 64 slots


@pytest.fixture
async def neighbour(given: Given) -> AsyncIterator[Given]:
    """Yield helpers for another namespace."""
    other = Given(given.client, f"e2e-{secrets.token_hex(4)}")
    await made_namespace(given.client, other.namespace)
    async with other.recorder:
        yield other
    await given.client.delete(NAMESPACES, None, other.namespace)


async def restarts(given: Given) -> dict[str, int]:
    """Return the restart counts of the operator's containers by pod."""
    listed = await given.client.list_all(PODS, SYSTEM, label_selector="app.kubernetes.io/name=multistep")
    return {pod["metadata"]["name"]: sum(each["restartCount"] for each in pod["status"]["containerStatuses"]) for pod in listed}


async def test_a_slow_ignore_pattern_costs_its_own_trial_only(given: Given, neighbour: Given) -> None:
    before = await restarts(given)
    poison = trial(Step("a"))
    files = {"steps/a/tests/.harborignore": "*a" * 14 + "b", f"steps/a/tests/{'a' * 120}": ""}
    poison["spec"]["task"]["inline"]["files"] |= files
    poisoned, honest = await asyncio.gather(given.ended(poison), neighbour.ended(trial(Step("a"))))
    assert condition(poisoned, "Failed")["reason"] == "InvalidSpec" and "rewards" not in poisoned["status"]
    assert holds(honest, "Complete") and honest["status"]["rewards"] == {"reward": 1.0}
    assert before and await restarts(given) == before


DIGEST = "sha256sum < /multistep/runner"
REPLACES = """#!/bin/bash
printf '#!/bin/sh\\necho {}\\n' > /tmp/liar; chmod 755 /tmp/liar
id -u > /tmp/user
try() { "$@" && echo "$*" >> /tmp/succeeded; }
try cp /tmp/liar /multistep/runner
try mv -f /tmp/liar /multistep/runner
try rm -f /multistep/runner
try mount -o remount,rw /multistep
try mount --bind /tmp /multistep
try umount -l /multistep
try mv /multistep /moved
exit 0
"""
UNCHANGED = (
    "#!/bin/bash\n"
    f'[ "$(cat /tmp/user)" = 0 ] && [ ! -e /tmp/succeeded ] && [ "$(cat /before)" = "$({DIGEST})" ]\n'
    "echo $((! $?)) > /logs/verifier/reward.txt\n"
)


async def test_root_cannot_replace_the_runner_also_where_the_image_has_one(given: Given) -> None:
    """The operator's image has a runner at the same path."""
    step = Step("a", setup=f"{DIGEST} > /before\n", solve=REPLACES, test=UNCHANGED)
    root = {"spec": {"containers": [{"name": "main", "securityContext": {"runAsUser": 0}}]}}
    own = {
        "image": os.environ["MULTISTEP_TEST_IMAGE"],
        "imagePullPolicy": "IfNotPresent",
        "runnerInImage": True,
        "podTemplate": root,
    }
    for done in await asyncio.gather(given.ended(trial(step, Step("b"))), given.ended(trial(step, Step("b"), environment=own))):
        status = done["status"]
        assert holds(done, "Complete") and [each["rewards"] for each in status["steps"]] == [{"reward": 1.0}] * 2, status
        assert status["attempt"] == 1 and not status.get("attempts")


FLOOD = f"""
import socket, sys, time
connections = [socket.create_connection((sys.argv[1], 9876)) for _ in range({CONNECTIONS})]
open("/tmp/flooding", "w").close()
time.sleep(600)
"""


async def test_idle_connections_to_the_readiness_port_do_not_stop_a_trial(given: Given) -> None:
    manifest = trial(Step("a", solve=WAITS), Step("b"))
    name = manifest["metadata"]["name"]
    await given.applied(manifest)
    await given.until(name, in_agent)
    (pod,) = await given.pods(name)
    await flooding(given, pod["status"]["podIP"])
    await given.go(name)
    done = await given.until(name, finished)
    assert holds(done, "Complete") and done["status"]["rewards"] == {"reward": 1.0}
    assert holds(await given.client.get(PODS, given.namespace, "flood"), "Ready")  # the connections were held all the time


async def flooding(given: Given, address: str) -> None:
    """Start another pod that opens the connections and keeps them open."""
    container = {
        "name": "main",
        "image": os.environ["MULTISTEP_TEST_IMAGE"],
        "imagePullPolicy": "IfNotPresent",
        "command": ["python", "-c", FLOOD, address],
        "readinessProbe": {"exec": {"command": ["test", "-e", "/tmp/flooding"]}, "periodSeconds": 1},
    }
    spec = {"containers": [container], "terminationGracePeriodSeconds": 0}
    metadata = {"name": "flood", "namespace": given.namespace}
    await given.client.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})

    async def ready() -> bool:
        return holds(await given.client.get(PODS, given.namespace, "flood"), "Ready")

    await given.when(ready)
