"""Cause one real infrastructure failure of each kind: the trial is retried and records the reason, or is not affected."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from multistep.kube.resources import PODS
from multistep.pods import identity
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
    lost_attempt,
    reward,
    trial,
)
from tests.e2e.test_drains import lose
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


async def pod_of(given: Given, name: str) -> Object:
    (pod,) = [each for each in await given.pods(name) if not each["metadata"].get("deletionTimestamp")]
    return pod


async def lost(given: Given, manifest: Object, cause: Callable[[Object], Awaitable[object]]) -> Object:
    """Run the trial, call `cause` with its pod during the second step, and return the finished trial."""
    name = manifest["metadata"]["name"]
    await given.applied(manifest)
    await given.until(name, in_second_step)
    await cause(await pod_of(given, name))
    return await given.until(name, finished)


async def test_any_loss_of_a_pod_is_recorded_and_the_trial_restarts(given: Given) -> None:
    client, namespace = given.client, given.namespace

    async def deleted(pod: Object) -> None:
        await client.delete(PODS, namespace, pod["metadata"]["name"])

    async def evicted(pod: Object) -> None:
        owner = identity.trial_of(pod)
        assert owner is not None
        await lose(given, owner[1], pod["metadata"]["name"])

    async def killed(pod: Object) -> None:
        assert kill(processes(pod, RUNNER_SERVES)) == 1

    causes = {
        "PodDeleted": (deleted, "by another client"),
        "EvictionByEvictionAPI": (evicted, "Eviction"),
        "ContainerEnded": (killed, "status 137"),
    }
    manifests = {reason: two_steps() for reason in causes}
    ended = await asyncio.gather(*(lost(given, manifests[reason], cause) for reason, (cause, _) in causes.items()))
    for (reason, (_, output)), done in zip(causes.items(), ended, strict=True):
        assert_attempt_lost(done, reason, output)
        assert holds(done, "Complete") and done["status"]["rewards"] == {"reward": 0.75} and "failure" not in done["status"]


def assert_attempt_lost(done: Object, reason: str, output: str) -> None:
    (attempt,) = done["status"]["attempts"]
    assert attempt["reason"] == reason and output in attempt["message"], attempt
    assert (attempt["number"], attempt["nodeName"]) == (1, "node1") and attempt["podUID"]
    assert done["status"]["attempt"] == 1 or done["status"]["podUID"] != attempt["podUID"]
    assert attempt["startTime"] <= attempt["endTime"]
    assert [each.get("rewards") for each in attempt["steps"]] == [{"reward": 0.5}, None]


async def test_when_no_retry_is_left_the_trial_is_failed_by_its_reason_and_has_no_reward(given: Given) -> None:
    manifest = two_steps(infrastructureRetries=0)
    done = await lost(given, manifest, lambda pod: given.client.delete(PODS, given.namespace, pod["metadata"]["name"]))
    failed = condition(done, "Failed")
    assert (failed["status"], failed["reason"]) == ("True", "PodDeleted") and "attempt 1 of 1" in failed["message"]
    assert done["status"]["failure"] == {"class": "Infrastructure", "reason": "PodDeleted"}
    assert_attempt_lost(done, "PodDeleted", "by another client")
    assert "rewards" not in done["status"] and "reward" not in done["status"]


@pytest.mark.alone
async def test_a_pod_of_another_client_with_the_same_name_is_known_by_its_uid(given: Given) -> None:
    """The operator's processes are suspended while the pod is replaced, so that the operator never finds the pod missing."""
    operators = await given.client.list_all(PODS, "multistep-system", label_selector="app.kubernetes.io/name=multistep")
    asleep_ones = [pid for each in operators for pid in processes(each)]
    assert asleep_ones

    async def replaced(pod: Object) -> None:
        metadata = {key: pod["metadata"][key] for key in ("name", "namespace", "labels", "ownerReferences")}
        spec = {"containers": [{"name": "main", "image": IMAGE, "command": ["sleep", "600"], "imagePullPolicy": "IfNotPresent"}]}
        with asleep(asleep_ones):
            await given.client.delete(PODS, given.namespace, metadata["name"], grace_period_seconds=0)
            await given.client.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})

    done = await lost(given, two_steps(), replaced)
    assert_attempt_lost(done, "PodReplaced", "another pod of that name was created")
    assert holds(done, "Complete") and done["status"]["rewards"] == {"reward": 0.75}


@pytest.mark.long
async def test_a_preempted_trial_restarts_when_there_is_room_again(given: Given) -> None:
    """The trial's pod has the lowest priority and requests so much memory that the scheduler preempts this pod and no other."""
    low, high = f"low-{given.namespace}", f"high-{given.namespace}"
    classes = [priority(low, -10), priority(high, -5)]
    for each in classes:
        await given.client.create(each)
    megabytes = 12_500  # the node has 24 GB, so only one such pod fits
    large = {"environment": {"memory_mb": megabytes}}
    template = {"image": IMAGE, "podTemplate": {"spec": {"priorityClassName": low}}}
    container: Object = {"name": "x", "image": IMAGE, "command": ["sleep", "600"], "imagePullPolicy": "IfNotPresent"}
    container["resources"] = {"requests": {"memory": f"{megabytes}Mi"}}
    other = {"priorityClassName": high, "terminationGracePeriodSeconds": 0, "containers": [container]}
    preemptor = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "other", "namespace": given.namespace}, "spec": other}
    try:
        manifest = two_steps(config=large, environment=template)
        name = manifest["metadata"]["name"]
        await given.applied(manifest)
        await given.until(name, in_second_step)
        async with given.held((await pod_of(given, name))["metadata"]["name"]):
            await given.client.create(preemptor)
            await given.until(name, lost_attempt)
        waiting = await given.until(name, lambda found: condition(found, "Reconciling")["reason"] == "Unschedulable")
        assert "Insufficient memory" in condition(waiting, "Reconciling")["message"]
        await given.client.delete(PODS, given.namespace, "other")
        done = await given.until(name, finished)
    finally:
        for each in classes:
            await given.client.delete(await given.client.resource_of(each), None, each["metadata"]["name"])
    assert_attempt_lost(done, "PreemptionByScheduler", "preempting to accommodate a higher priority pod")
    assert holds(done, "Complete") and done["status"]["rewards"] == {"reward": 0.75}


def priority(name: str, value: int) -> Object:
    return {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": value}


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
