"""Attack the operator with hostile tasks and agents in the real cluster: an attack may harm only its own trial."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator

import pytest

from localkube import machine
from multistep.kube.resources import NAMESPACES, PODS, SWEEPS
from multistep.settings import Settings
from tests.e2e.given import (
    IMAGE,
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

NO_USER_NAMESPACES = machine.user_namespaces_problem()
CONNECTIONS = 100  # more than the 64 connections that the runner keeps open


@pytest.fixture
async def neighbour(given: Given) -> AsyncIterator[Given]:
    """Yield helpers for a second namespace, whose trials the attacks must not harm."""
    other = Given(given.client, f"e2e-{secrets.token_hex(4)}")
    await made_namespace(given.client, other.namespace)
    async with other.recorder:
        yield other
    await given.client.delete(NAMESPACES, None, other.namespace)


async def restarts(given: Given) -> dict[str, int]:
    """Return the restart counts of the operator's containers by pod."""
    listed = await given.client.list_all(PODS, SYSTEM, label_selector="app.kubernetes.io/name=multistep")
    return {pod["metadata"]["name"]: sum(each["restartCount"] for each in pod["status"]["containerStatuses"]) for pod in listed}


@pytest.mark.long
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
    """The image of the second trial is the operator's image, which already contains a runner at the runner's path."""
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


NOBODY = """#!/bin/sh
read -r inside outside size < /proc/self/uid_map
echo $((inside == 0 && outside >= 65536 && size == 65536)) > /logs/verifier/reward.txt
"""


@pytest.mark.skipif(NO_USER_NAMESPACES is not None, reason=str(NO_USER_NAMESPACES))
@pytest.mark.parametrize("where", ["shared", "separate"])
async def test_root_of_a_trial_in_a_user_namespace_is_nobody_on_the_node(given: Given, where: str) -> None:
    environment = {"image": IMAGE, "podTemplate": {"spec": {"hostUsers": False}}}
    config = {"verifier": {"environment_mode": where}}
    done = await given.ended(trial(Step("a", test=NOBODY), Step("b", test=NOBODY), config=config, environment=environment))
    assert holds(done, "Complete") and [each["rewards"] for each in done["status"]["steps"]] == [{"reward": 1.0}] * 2, done


FLOOD = f"""
import socket, sys, time
connections = [socket.create_connection((sys.argv[1], 9876)) for _ in range({CONNECTIONS})]
open("/tmp/flooding", "w").close()
time.sleep(600)
"""


@pytest.mark.long
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
    (flood,) = (await given.client.get(PODS, given.namespace, "flood"))["status"]["containerStatuses"]
    assert "running" in flood["state"] and flood["restartCount"] == 0, "the connections stayed open until the end"


async def flooding(given: Given, address: str) -> None:
    """Start a pod that opens CONNECTIONS connections to the runner at this address and keeps them open."""
    container = {
        "name": "main",
        "image": os.environ["MULTISTEP_TEST_IMAGE"],
        "imagePullPolicy": "IfNotPresent",
        "command": ["python", "-c", FLOOD, address],
        "readinessProbe": {"exec": {"command": ["test", "-e", "/tmp/flooding"]}, "periodSeconds": 1, "timeoutSeconds": 60},
    }
    spec = {"containers": [container], "terminationGracePeriodSeconds": 0}
    metadata = {"name": "flood", "namespace": given.namespace}
    await given.client.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})

    async def ready() -> bool:
        return holds(await given.client.get(PODS, given.namespace, "flood"), "Ready")

    await given.when(ready)


@pytest.mark.long
async def test_an_agent_that_makes_exec_sessions_impossible_loses_its_trial(given: Given) -> None:
    """The agent deletes the container's working directory, without which no exec session starts, and keeps running for longer than
    the first session stays open (settings.lingerSeconds, from when the operator has reported the phase)."""
    solve = f"#!/bin/sh\ncd /; rm -rf /app; sleep {Settings().linger_seconds + 30:g}\n"
    failed = await given.ended(trial(Step("a", solve=solve), config={"environment": {"workdir": "/app"}}))
    status = failed["status"]
    assert condition(failed, "Failed")["reason"] == "ExecSessionsKilled"
    assert (status["failure"]["class"], status["score"]) == ("Agent", 0)
    assert "rewards" not in status and status["attempt"] == 1 and "attempts" not in status


SEARCH = """#!/bin/bash
everything() {
  cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline /proc/self/mountinfo /proc/self/cgroup /etc/host* /etc/resolv.conf | tr '\\0' '\\n'
  env
  ls -R /run /multistep /logs /tmp
}
everything 2> /dev/null > /seen
grep -a 'NAME' /seen > /named
grep -a 'multiste[p]' /seen > /control
exit 0
"""
UNNAMED = "#!/bin/sh\n[ -s /control ] && [ ! -s /named ]\necho $((! $?)) > /logs/verifier/reward.txt\n"


async def test_nothing_in_the_pod_tells_an_agent_its_trial_or_attempt(given: Given) -> None:
    """The agent must not find the trial's name in its pod, although the pod's name contains it. As a control, the fixed hostname
    must be found."""
    name = f"t-{secrets.token_hex(6)}"
    pattern = f"[t]{name[1:]}"  # the brackets keep grep from matching its own command line
    done = await given.ended(trial(Step("a", solve=SEARCH.replace("NAME", pattern), test=UNNAMED), name=name))
    assert done["status"].get("rewards") == {"reward": 1.0}, done["status"]


async def test_nothing_in_the_pod_tells_an_agent_its_sweep(given: Given) -> None:
    """The agent must find neither its sweep's name nor its own in its pod, although the trial's name contains both."""
    name, agent = f"s-{secrets.token_hex(6)}", f"a-{secrets.token_hex(6)}"
    pattern = f"[s]{name[1:]}\\|[a]{agent[1:]}"
    task = trial(Step("a", solve=SEARCH.replace("NAME", pattern), test=UNNAMED))["spec"]["task"]["inline"]
    spec = {
        "tasks": [{"name": "search", "inline": task}],
        "agents": [{"name": agent, "agent": {"name": "oracle"}}],
        "attempts": 2,
        "template": {"spec": {"environment": {"image": IMAGE}}},
    }
    await given.applied({"apiVersion": SWEEPS.api_version, "kind": SWEEPS.kind, "metadata": {"name": name}, "spec": spec})
    done = await given.sweep_ended(name)
    (result,) = done["status"]["agents"]
    assert (result["counted"], result["mean"]) == (2, 1.0), done["status"]
