"""Contract tests of the cluster interface that the reconciler uses. They run against the fake cluster and a real one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from multistep.errors import AlreadyExists, ClusterError, Conflict, NotFound, StreamLost
from multistep.kube.cluster_protocols import Cluster, Object
from multistep.kube.resources import CONFIG_MAPS, DISRUPTION_BUDGETS, LEASES, PODS, SECRETS, TRIALS
from multistep.kube.shard import LABEL_SHARD
from multistep.reconcile.trial.emit_events import event_manifest
from multistep.runner_client.session import Session

Case = Callable[[Cluster, str], Awaitable[None]]
CASES: dict[str, Case] = {}

TRIAL = {"apiVersion": "multistep.dev/v1alpha1", "kind": "MultiStepTrial"}


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


async def make_trial(cluster: Cluster, namespace: str, name: str, **labels: str) -> Object:
    metadata = {"name": name, "namespace": namespace, "labels": labels}
    spec = {"task": {"inline": {"config": {"version": "1.0"}}}, "agent": {"name": "nop"}}
    return await cluster.create({**TRIAL, "metadata": metadata, "spec": spec})


async def make_idle_trial(cluster: Cluster, namespace: str, name: str, **labels: str) -> Object:
    """Create a trial that no operator of a real cluster runs, because of its shard."""
    return await make_trial(cluster, namespace, name, **{LABEL_SHARD: "nobodys", **labels})


async def make_pod(cluster: Cluster, namespace: str, name: str, owner: Object | None = None) -> Object:
    metadata: dict[str, Any] = {"name": name, "namespace": namespace}
    if owner is not None:
        reference = {"name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"], "controller": True}
        metadata["ownerReferences"] = [{**TRIAL, **reference}]
    containers = [{"name": "main", "image": "localhost/nowhere:none", "imagePullPolicy": "Never"}]
    spec = {"containers": containers, "terminationGracePeriodSeconds": 0}
    return await cluster.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})


# Every status that the operator writes has these fields; the CRD defaults some of them for unreconciled trials.
SEEN: dict[str, Any] = {"observedGeneration": 1, "conditions": []}


async def apply(cluster: Cluster, trial: Object, status: dict[str, Any]) -> Object:
    metadata = trial["metadata"]
    return await cluster.apply_status(
        TRIALS,
        metadata["namespace"],
        metadata["name"],
        uid=metadata["uid"],
        resource_version=metadata["resourceVersion"],
        status=SEEN | status,
    )


@case
async def a_status_is_written_and_returned_with_a_new_version(cluster: Cluster, namespace: str) -> None:
    trial = await make_idle_trial(cluster, namespace, "written")
    after = await apply(cluster, trial, {"phase": "Running", "attempt": 1})
    assert after["status"] == SEEN | {"phase": "Running", "attempt": 1}
    assert after["metadata"]["resourceVersion"] != trial["metadata"]["resourceVersion"]
    assert (await cluster.get(TRIALS, namespace, "written"))["status"] == after["status"]


@case
async def the_whole_status_is_replaced(cluster: Cluster, namespace: str) -> None:
    trial = await make_idle_trial(cluster, namespace, "replaced")
    steps = [{"name": "a", "phase": "Running"}, {"name": "b", "phase": "Pending"}]
    trial = await apply(cluster, trial, {"phase": "Running", "podName": "p", "steps": steps})
    trial = await apply(cluster, trial, {"phase": "Complete", "steps": steps[:1]})
    assert trial["status"] == SEEN | {"phase": "Complete", "steps": steps[:1]}


@case
async def the_same_status_again_makes_no_new_version(cluster: Cluster, namespace: str) -> None:
    trial = await apply(cluster, await make_idle_trial(cluster, namespace, "again"), {"phase": "Running"})
    again = await apply(cluster, trial, {"phase": "Running"})
    assert again["metadata"]["resourceVersion"] == trial["metadata"]["resourceVersion"]


@case
async def a_stale_writer_loses(cluster: Cluster, namespace: str) -> None:
    stale = await make_idle_trial(cluster, namespace, "stale")
    await apply(cluster, stale, {"phase": "Running"})
    with pytest.raises(Conflict):
        await apply(cluster, stale, {"phase": "Pending"})
    assert (await cluster.get(TRIALS, namespace, "stale"))["status"] == SEEN | {"phase": "Running"}


@case
async def a_writer_to_another_trial_of_that_name_loses(cluster: Cluster, namespace: str) -> None:
    first = await make_idle_trial(cluster, namespace, "namesake")
    assert await cluster.delete(TRIALS, namespace, "namesake", uid=first["metadata"]["uid"])
    await make_idle_trial(cluster, namespace, "namesake")
    with pytest.raises(Conflict):
        await apply(cluster, first, {"phase": "Running"})
    with pytest.raises(Conflict):
        await cluster.delete(TRIALS, namespace, "namesake", uid=first["metadata"]["uid"])


@case
async def a_status_of_a_trial_that_is_gone_is_not_written(cluster: Cluster, namespace: str) -> None:
    trial = await make_idle_trial(cluster, namespace, "gone")
    assert await cluster.delete(TRIALS, namespace, "gone")
    with pytest.raises((NotFound, Conflict)):
        await apply(cluster, trial, {"phase": "Running"})
    with pytest.raises(NotFound):
        await cluster.get(TRIALS, namespace, "gone")
    assert not await cluster.delete(TRIALS, namespace, "gone")


@case
async def a_name_is_given_once(cluster: Cluster, namespace: str) -> None:
    await make_pod(cluster, namespace, "once")
    with pytest.raises(AlreadyExists):
        await make_pod(cluster, namespace, "once")
    await cluster.delete(PODS, namespace, "once", grace_period_seconds=0)


@case
async def a_pod_is_deleted_by_the_uid_that_was_meant(cluster: Cluster, namespace: str) -> None:
    pod = await make_pod(cluster, namespace, "meant")
    with pytest.raises(Conflict):
        await cluster.delete(PODS, namespace, "meant", uid="00000000-0000-0000-0000-000000000000")
    assert await cluster.delete(PODS, namespace, "meant", uid=pod["metadata"]["uid"], grace_period_seconds=0)
    with pytest.raises(NotFound):
        await cluster.get(PODS, namespace, "meant")


@case
async def a_lease_is_written_over_the_version_that_was_read(cluster: Any, namespace: str) -> None:
    metadata = {"name": "lease", "namespace": namespace}
    first = await cluster.create({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata})
    second = await cluster.replace({**first, "spec": {"holderIdentity": "me", "leaseDurationSeconds": 15}})
    with pytest.raises(Conflict):
        await cluster.replace({**first, "spec": {"holderIdentity": "another"}})
    third = await cluster.replace({**second, "spec": {**second["spec"], "holderIdentity": ""}})
    assert third["metadata"]["resourceVersion"] != second["metadata"]["resourceVersion"]
    assert not (await cluster.get(LEASES, namespace, "lease"))["spec"].get("holderIdentity")


@case
async def of_a_list_the_metadata_alone_can_be_had(cluster: Any, namespace: str) -> None:
    trial = await make_idle_trial(cluster, namespace, "metadata")
    listed = {each["name"]: each for each in await cluster.list_metadata(TRIALS, namespace)}
    assert listed["metadata"]["resourceVersion"] == trial["metadata"]["resourceVersion"]
    assert "spec" not in listed["metadata"]
    pod = await make_pod(cluster, namespace, "owned", trial)
    [found] = [each for each in await cluster.list_metadata(PODS, namespace) if each["name"] == "owned"]
    assert found["ownerReferences"][0]["uid"] == trial["metadata"]["uid"]
    await cluster.delete(PODS, namespace, "owned", uid=pod["metadata"]["uid"], grace_period_seconds=0)


@case
async def trials_are_listed_by_label_and_namespace(cluster: Cluster, namespace: str) -> None:
    await make_idle_trial(cluster, namespace, "one", sweep="listed")
    await make_idle_trial(cluster, namespace, "two", sweep="listed")
    await make_idle_trial(cluster, namespace, "three", sweep="other")
    listed = await cluster.list_all(TRIALS, namespace, label_selector="sweep=listed")
    assert sorted(each["metadata"]["name"] for each in listed) == ["one", "two"]
    assert {each["kind"] for each in listed} == {"MultiStepTrial"}
    assert await cluster.list_all(TRIALS, "kube-public", label_selector="sweep=listed") == []


@case
async def what_has_a_label_and_what_has_none_is_listed(cluster: Any, namespace: str) -> None:
    await make_idle_trial(cluster, namespace, "with", shard="a")
    await make_idle_trial(cluster, namespace, "without")
    for selector, wanted, other in (("shard=a", "with", "without"), ("!shard", "without", "with")):
        listed = {each["name"] for each in await cluster.list_metadata(TRIALS, namespace, label_selector=selector)}
        assert wanted in listed and other not in listed


@case
async def an_event_is_taken_however_long_its_message(cluster: Cluster, namespace: str) -> None:
    trial = await make_idle_trial(cluster, namespace, "told")
    await cluster.create(event_manifest(trial, reason="StepFinished", message="é" * 3000, type="Warning"))


@case
async def what_is_not_there_is_not_found(cluster: Cluster, namespace: str) -> None:
    for resource in (PODS, TRIALS, CONFIG_MAPS, SECRETS):
        with pytest.raises(NotFound):
            await cluster.get(resource, namespace, "none")
    with pytest.raises(NotFound):
        await cluster.open_exec(namespace, "none", "main", ["true"])


@case
async def no_session_starts_in_a_pod_that_does_not_run(cluster: Cluster, namespace: str) -> None:
    """The cluster rejects the exec, or (as API servers do) accepts it before it calls the kubelet and then ends the session."""
    pod = await make_pod(cluster, namespace, "pending")
    with pytest.raises((ClusterError, StreamLost)):
        stream = await cluster.open_exec(namespace, "pending", "main", ["true"])
        async with Session(stream, pod_uid=pod["metadata"]["uid"]) as session:
            await session.hello()
    await cluster.delete(PODS, namespace, "pending", grace_period_seconds=0)


@case
async def a_disruption_budget_is_made_and_deleted_by_its_name(cluster: Cluster, namespace: str) -> None:
    selector = {"matchLabels": {"multistep.dev/pod": "none"}}
    metadata = {"name": "guard", "namespace": namespace}
    budget = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": metadata}
    await cluster.create({**budget, "spec": {"minAvailable": 1, "selector": selector}})
    with pytest.raises(Conflict):
        await cluster.create({**budget, "spec": {"minAvailable": 1, "selector": selector}})
    assert await cluster.delete(DISRUPTION_BUDGETS, namespace, "guard")
    assert not await cluster.delete(DISRUPTION_BUDGETS, namespace, "guard")


@case
async def trials_are_listed_page_by_page_and_changed_by_a_patch(cluster: Any, namespace: str) -> None:
    for number in range(7):
        await make_idle_trial(cluster, namespace, f"page-{number}", listed="by-page")
    found = [each["metadata"]["name"] async for each in cluster.iterate(TRIALS, namespace, label_selector="listed=by-page")]
    assert sorted(found) == [f"page-{number}" for number in range(7)]
    asked = {"metadata": {"annotations": {"multistep.dev/suspended-by": "s"}}, "spec": {"suspend": True}}
    changed = await cluster.patch(TRIALS, namespace, "page-3", asked)
    assert (changed["spec"]["suspend"], changed["spec"]["agent"]) == (True, {"name": "nop"})
    undone = await cluster.patch(
        TRIALS, namespace, "page-3", {"metadata": {"annotations": {"multistep.dev/suspended-by": None}}, "spec": {"suspend": None}}
    )
    assert "suspend" not in undone["spec"] and not undone["metadata"].get("annotations")
    with pytest.raises(NotFound):
        await cluster.patch(TRIALS, namespace, "none", {"spec": {"stop": True}})
