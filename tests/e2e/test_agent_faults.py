"""Test a trial with one of Harbor's agents in which the operator, the agent host and the pod are killed in turn."""

from __future__ import annotations

import signal

import pytest

from multistep.client.reconnecting_watch import WatchingClient
from multistep.kube.resources import PODS
from multistep.pods.agent_host import CONTAINER
from tests.e2e.given import Given, Object, Step, finished, holds, in_agent, reward_for_text, trial
from tests.e2e.replicas import NAMESPACE, Replicas
from tests.e2e.test_agents import agent, ledger, step
from tests.support import servers
from tests.support.machine import kill, processes

KILLS = 10

pytestmark = [pytest.mark.alone, pytest.mark.long]


async def new_leader(client: WatchingClient, replicas: Replicas) -> None:
    """Kill the leader's process, delete its pod, and wait until the new pod has acquired the lease."""
    leader = await replicas.leader()
    replicas.signal(leader, signal.SIGKILL)
    metadata = leader["metadata"]
    former = (await replicas.lease())["holderIdentity"]
    # Delete the pod, because the kubelet waits longer before each further restart in the same pod.
    await client.delete(PODS, NAMESPACE, metadata["name"], uid=metadata["uid"])
    await replicas.until_held_by_another(former)


async def attempt_works(given: Given, name: str, attempt: int) -> Object:
    """Wait until the agent of this attempt is running; return the trial's pod."""
    await given.until(name, lambda each: in_agent(each) and each["status"]["attempt"] == attempt)
    await given.in_pod(name, "sh", "-c", "until [ -e /tmp/runs ]; do sleep 0.05; done")
    [pod] = [each for each in await given.pods(name) if not each["metadata"].get("deletionTimestamp")]
    return pod


async def test_an_agent_runs_once_per_attempt_and_its_usage_is_counted_once(given: Given, model: servers.Server) -> None:
    replicas = Replicas(given.client)
    works = step("works", "echo run >> /tmp/runs; while [ ! -e /tmp/go ]; do sleep 0.1; done")
    made = trial(
        works, Step("count", test=reward_for_text("/tmp/runs", "run")), **await agent(given, model), infrastructureRetries=2
    )
    name = (await given.applied(made))["metadata"]["name"]
    pod = await attempt_works(given, name, 1)
    for _ in range(KILLS):
        await new_leader(given.client, replicas)
    assert kill(processes(pod, b"/multistep/runner\0serve", CONTAINER)) == 1
    pod = await attempt_works(given, name, 2)
    await given.client.delete(PODS, given.namespace, pod["metadata"]["name"], uid=pod["metadata"]["uid"])
    await attempt_works(given, name, 3)
    await given.in_pod(name, "touch", "/tmp/go")
    found = await given.until(name, finished)
    status = found["status"]
    assert holds(found, "Complete") and status["rewards"] == {"reward": 1.0}, status
    assert [each["number"] for each in status["attempts"]] == [1, 2]
    used = [step["usage"]["requests"] for each in [*status["attempts"], status] for step in each["steps"]]
    assert used == [1, 1, 3, 1] and sum(used) == len(await ledger(model)), status
