"""Test that the operator deletes orphans, and nothing else. In these tests the operator searches for orphans every second."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest

from multistep.kube.resources import CONFIG_MAPS, PODS, SECRETS
from tests.e2e.given import Object, in_agent
from tests.e2e.operators import kubectl
from tests.e2e.test_cli import EXAMPLE, multistep
from tests.simulated.given import HOLD, NO_IMAGE, Given, OwnOperators, Step, trial
from tests.support.simulation.operator import Operator
from tests.support.waiting import eventually

SETTINGS = {"orphans_seconds": "1", "orphans_grace_seconds": "3", "results_retention_seconds": "3"}


@pytest.fixture
async def operator(own: OwnOperators) -> Operator:
    return await own.started(**SETTINGS)


@pytest.fixture
def given(own: OwnOperators) -> Given:
    return own.given


async def make_pod(given: Given, name: str, owner: Object | None, labels: dict[str, str]) -> Object:
    metadata: dict[str, Any] = {"name": name, "namespace": given.namespace, "labels": labels}
    if owner is not None:
        reference = {"name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"], "controller": True}
        metadata["ownerReferences"] = [{"apiVersion": owner["apiVersion"], "kind": owner["kind"], **reference}]
    containers = [{"name": "main", "image": "simulated"}]
    spec = {"containers": containers, "terminationGracePeriodSeconds": 0, **given.environment["podTemplate"]["spec"]}
    return await given.client.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})


def labels_of(pod: Object, name: str) -> dict[str, str]:
    return {**pod["metadata"]["labels"], "multistep.dev/pod": name}


async def pod_names(given: Given) -> set[str]:
    return {each["metadata"]["name"] for each in await given.client.list_all(PODS, given.namespace)}


async def test_pods_that_no_trial_waits_for_go_and_the_trial_they_claim_continues(given: Given, operator: Operator) -> None:
    for name in ("live", "left"):
        await given.applied(trial(Step("a", solve=HOLD), name=name))
    live, _ = [await given.until(name, in_agent) for name in ("live", "left")]
    [pod] = await given.pods("live")
    await make_pod(given, "live-9", live, labels_of(pod, "live-9"))  # an orphan, as created by an operator that lost its lease
    await make_pod(given, "copied", None, pod["metadata"]["labels"])  # a trial's labels without an owner reference: not an orphan
    await asyncio.to_thread(kubectl, "-n", given.namespace, "delete", "mst", "left", "--cascade=orphan")

    async def orphans_are_gone() -> bool:
        return not await pod_names(given) & {"live-9", "left-1"}

    await given.when(orphans_are_gone)
    await given.go("live")
    done = await given.until("live", lambda found: (found.get("status") or {}).get("phase") == "Complete")
    assert (done["status"]["podUID"], done["status"]["rewards"]) == (pod["metadata"]["uid"], {"reward": 1.0})
    assert not done["status"].get("attempts") and "copied" in await pod_names(given)
    await until_counted(operator, "pod")


async def test_results_outlive_their_trial_by_the_retention_time_and_those_of_existing_trials_stay(
    given: Given, operator: Operator
) -> None:
    done = await asyncio.gather(*(given.ended(trial(Step("a"), name=name)) for name in ("kept", "gone")))
    kept, gone = [each["status"]["results"] for each in done]
    assert await fetched(gone)
    await given.deleted("gone")

    async def deleted() -> bool:
        try:
            return not await fetched(gone)
        except aiohttp.ClientPayloadError:  # the results were deleted during the download, so the server ended it early
            return False

    await eventually(deleted)
    assert await fetched(kept)
    await until_counted(operator, "results")


async def test_objects_that_run_created_for_a_trial_are_deleted_with_it(given: Given) -> None:
    arguments = ("run", str(EXAMPLE), "--image", NO_IMAGE, "--name", "made", "--detach", "--var", "KEY=value")
    code, _, err = await multistep(*arguments, "-n", given.namespace)
    assert code == 0, err

    async def left() -> list[str]:
        maps, secrets = [await given.client.list_all(kind, given.namespace) for kind in (CONFIG_MAPS, SECRETS)]
        return [each["metadata"]["name"] for each in (*maps, *secrets) if each["metadata"]["name"].startswith("made-")]

    assert len(await left()) == 2
    await given.deleted("made")

    async def nothing_left() -> bool:
        return not await left()

    await eventually(nothing_left)


async def until_counted(operator: Operator, kind: str) -> None:
    """Wait until the operator's metric counts a deleted orphan. The operator increments it only after the deletion."""

    async def counted() -> bool:
        return (await operator.samples())[f'multistep_orphans_deleted_total{{kind="{kind}"}}'] > 0

    await eventually(counted)


async def fetched(url: str) -> bool:
    """Return whether the results at this URL can be downloaded."""
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return response.status == 200 and bool(await response.read())
