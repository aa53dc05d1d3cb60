"""Test phases that run out of memory: the kernel kills one process (cgroup v1) or the whole container (cgroup v2)."""

from __future__ import annotations

from typing import Any

from localkube import cgroups
from localkube.config import load_config
from tests.e2e.given import Given, Object, Step, finished, holds, in_agent, trial
from tests.support.machine import localkube

LIMITED = {"environment": {"memory_mb": 64}}
EATS = "tail /dev/zero"  # allocates memory until it is killed: it buffers a line without end


def command_agent(script: str) -> dict[str, Any]:
    return {"name": "command", "command": ["sh", "-c", script]}


def once_and_for_all(done: Object) -> Object:
    """Return the exception of the trial's only step; assert that the trial was not retried."""
    status = done["status"]
    assert holds(done, "Complete") and status["attempt"] == 1 and not status.get("attempts")
    exception: Object = status["steps"][0]["exception"]
    assert "memory" in exception["message"] and "64Mi" in exception["message"]
    return exception


def survived(exception: Object) -> bool:
    """Return whether the container survived, so that its verifier could run. With cgroup v1 the kernel kills one process, and may
    then kill PID 1, too, before the first has freed its memory."""
    ended = "container ended" in exception["message"]
    assert ended or not cgroups.is_v2()
    return not ended


async def test_an_agent_whose_process_runs_out_of_memory_has_failed_and_is_verified(given: Given) -> None:
    done = await given.ended(trial(Step("a"), config=LIMITED, agent=command_agent(f"exec {EATS}")))
    exception = once_and_for_all(done)
    assert (exception["type"], exception["phase"]) == ("OutOfMemoryError", "agent")
    assert done["status"]["steps"][0].get("rewards") == ({"reward": 1.0} if survived(exception) else None)


async def test_a_reward_that_a_verifier_wrote_before_it_ran_out_of_memory_does_not_count(given: Given) -> None:
    test = f"#!/bin/sh\necho 1 > /logs/verifier/reward.txt\nexec {EATS}\n"
    done = await given.ended(trial(Step("a", test=test), config=LIMITED))
    exception = once_and_for_all(done)
    assert (exception["type"], exception["phase"]) == ("OutOfMemoryError", "verifier")
    assert "rewards" not in done["status"]["steps"][0] and "rewards" not in done["status"]


async def test_a_container_that_runs_out_of_memory_is_the_phases_failure(given: Given) -> None:
    """With cgroup v2 the kernel kills the whole container. With v1 it kills one process or two, and the test kills the others."""
    manifest = trial(Step("a"), config=LIMITED, agent=command_agent(f"{EATS}; touch /tmp/eaten; sleep 600"))
    name = manifest["metadata"]["name"]
    await given.applied(manifest)
    if not cgroups.is_v2():
        await given.until(name, in_agent)
        await given.in_pod(name, "sh", "-c", "while [ ! -e /tmp/eaten ]; do sleep 0.1; done")
        (pod,) = await given.pods(name)
        await kill_all_of_container(pod)
    exception = once_and_for_all(await given.until(name, finished))
    assert (exception["type"], exception["phase"]) == ("OutOfMemoryError", "agent")
    assert "phase agent of step a" in exception["message"] and "OOMKilled" in exception["message"]
    assert "rewards" not in (await given.get(name))["status"]


async def kill_all_of_container(pod: Object) -> None:
    """Kill all processes of the container, as the kernel does with cgroup v2."""
    config = load_config()
    container = pod["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://")
    ctr = (str(config.paths.bin / "ctr"), "--address", str(config.paths.containerd_socket(config.first)), "--namespace", "k8s.io")
    await localkube("node", *ctr, "tasks", "kill", "--signal", "SIGKILL", container, fails="no running task found")
