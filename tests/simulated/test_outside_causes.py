"""Cause the loss of a trial's pod in each way: the trial is retried and records the reason."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from typing import Any

from multistep.kube.resources import PODS
from multistep.pods import pod_identity
from tests.e2e.given import Object, condition, finished, holds, lost_attempt
from tests.e2e.test_drains import evict
from tests.simulated.given import HOLDS_IN_FIRST_POD, IMAGE, Given, OwnOperators, Step, reward, trial


def in_second_step(found: Object) -> bool:
    status = found.get("status") or {}
    return status.get("currentStep") == "b" and status["steps"][-1].get("phase") == "Agent"


def two_steps(**spec: Any) -> Object:
    return trial(Step("a", test=reward(0.5)), Step("b", solve=HOLDS_IN_FIRST_POD), **spec)


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


async def lose(given: Given, name: str, pod: str) -> None:
    """Evict the trial's pod, and wait until the attempt has failed."""
    async with given.held(pod):
        await evict(given, pod)
        await given.until(name, lost_attempt)


async def test_any_loss_of_a_pod_is_recorded_and_the_trial_restarts(given: Given) -> None:
    client, namespace = given.client, given.namespace

    async def deleted(pod: Object) -> None:
        await client.delete(PODS, namespace, pod["metadata"]["name"])

    async def evicted(pod: Object) -> None:
        owner = pod_identity.trial_of(pod)
        assert owner is not None
        await lose(given, owner[1], pod["metadata"]["name"])

    async def killed(pod: Object) -> None:
        await given.node.end_container(pod, 137)

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
    assert attempt["number"] == 1 and attempt["nodeName"].startswith("simulated-") and attempt["podUID"]
    assert done["status"]["attempt"] == 1 or done["status"]["podUID"] != attempt["podUID"]
    assert attempt["startTime"] <= attempt["completionTime"]
    assert [each.get("rewards") for each in attempt["steps"]] == [{"reward": 0.5}, None]


async def test_when_no_retry_is_left_the_trial_is_failed_by_its_reason_and_has_no_reward(given: Given) -> None:
    manifest = two_steps(infrastructureRetries=0)
    done = await lost(given, manifest, lambda pod: given.client.delete(PODS, given.namespace, pod["metadata"]["name"]))
    failed = condition(done, "Failed")
    assert (failed["status"], failed["reason"]) == ("True", "PodDeleted") and "attempt 1 of 1" in failed["message"]
    assert done["status"]["failure"] == {"class": "Infrastructure", "reason": "PodDeleted"}
    assert_attempt_lost(done, "PodDeleted", "by another client")
    assert "rewards" not in done["status"] and "reward" not in done["status"]


async def test_a_pod_of_another_client_with_the_same_name_is_known_by_its_uid(own: OwnOperators) -> None:
    """The operator's process is suspended while the pod is replaced, so that the operator never finds the pod missing."""
    given, operator = own.given, await own.started()

    async def replaced(pod: Object) -> None:
        metadata = {key: pod["metadata"][key] for key in ("name", "namespace", "labels", "ownerReferences")}
        spec = {"containers": [{"name": "main", "image": IMAGE}], **given.environment["podTemplate"]["spec"]}
        operator.signal(signal.SIGSTOP)
        await given.client.delete(PODS, given.namespace, metadata["name"], grace_period_seconds=0)
        await given.client.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        operator.signal(signal.SIGCONT)

    done = await lost(given, two_steps(), replaced)
    assert_attempt_lost(done, "PodReplaced", "another pod of that name was created")
    assert holds(done, "Complete") and done["status"]["rewards"] == {"reward": 0.75}


async def test_a_preempted_trial_restarts_when_there_is_room_again(given: Given) -> None:
    """The trial's pod has the lowest priority and requests so much memory that the scheduler preempts this pod and no other."""
    low, high = f"low-{given.namespace}", f"high-{given.namespace}"
    classes = [priority(low, -10), priority(high, -5)]
    for each in classes:
        await given.client.create(each)
    megabytes = 6_000_000  # the node has 10 TiB, so only one such pod fits
    large = {"environment": {"memory_mb": megabytes}}
    template = {"image": IMAGE, "podTemplate": {"spec": {"priorityClassName": low}}}
    container: Object = {"name": "x", "image": IMAGE}
    container["resources"] = {"requests": {"memory": f"{megabytes}Mi"}}
    placed = given.environment["podTemplate"]["spec"]
    other = {"priorityClassName": high, "terminationGracePeriodSeconds": 0, "containers": [container], **placed}
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
