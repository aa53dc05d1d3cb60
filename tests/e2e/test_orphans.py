"""Test that the operator deletes orphans, and nothing else. In these tests the operator searches for orphans every second."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from multistep.cli.trial.fetch import ServicePath, locate
from multistep.errors import NotFound, Unavailable
from multistep.kube.resources import CONFIG_MAPS, PODS, SECRETS
from tests.e2e.given import WAITS, Given, Object, Step, trial
from tests.e2e.operators import kubectl, samples, with_variables
from tests.e2e.test_cli import EXAMPLE, multistep
from tests.support.waiting import eventually

pytestmark = pytest.mark.alone

SETTINGS = {"MULTISTEP_ORPHANS_SECONDS": "1", "MULTISTEP_ORPHANS_GRACE_SECONDS": "3", "MULTISTEP_RESULTS_RETENTION_SECONDS": "3"}


@pytest.fixture(scope="module", autouse=True)
def often() -> Iterator[None]:
    with with_variables(SETTINGS):
        yield


async def make_pod(given: Given, name: str, owner: Object | None, labels: dict[str, str]) -> Object:
    metadata: dict[str, Any] = {"name": name, "namespace": given.namespace, "labels": labels}
    if owner is not None:
        reference = {"name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"], "controller": True}
        metadata["ownerReferences"] = [{"apiVersion": owner["apiVersion"], "kind": owner["kind"], **reference}]
    containers = [{"name": "main", "image": "localhost/nowhere:none", "imagePullPolicy": "Never"}]
    spec = {"containers": containers, "terminationGracePeriodSeconds": 0}
    return await given.client.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})


def labels_of(pod: Object, name: str) -> dict[str, str]:
    return {**pod["metadata"]["labels"], "multistep.dev/pod": name}


async def pod_names(given: Given) -> set[str]:
    return {each["metadata"]["name"] for each in await given.client.list_all(PODS, given.namespace)}


def in_agent(found: Object) -> bool:
    return any(step.get("phase") == "Agent" for step in (found.get("status") or {}).get("steps") or [])


async def test_pods_that_no_trial_waits_for_go_and_the_trial_they_claim_continues(given: Given) -> None:
    for name in ("live", "left"):
        await given.applied(trial(Step("a", solve=WAITS), name=name))
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
    await until_counted(given, "pod")


async def test_results_outlive_their_trial_by_the_retention_time_and_those_of_existing_trials_stay(given: Given) -> None:
    done = await asyncio.gather(*(given.ended(trial(Step("a"), name=name)) for name in ("kept", "gone")))
    kept, gone = [each["status"]["results"] for each in done]
    assert await fetched(given, gone)
    await given.deleted("gone")

    async def deleted() -> bool:
        try:
            return not await fetched(given, gone)
        except Unavailable:  # the results were deleted during the download, so the server ended it early
            return False

    await eventually(deleted)
    assert await fetched(given, kept)
    await until_counted(given, "results")


async def test_objects_that_run_created_for_a_trial_are_deleted_with_it(given: Given, tmp_path: Path) -> None:
    arguments = ("run", str(EXAMPLE), "--name", "made", "--detach", "--var", "KEY=value", "-n", given.namespace)
    code, _, err = await multistep(*arguments)
    assert code == 0, err

    async def left() -> list[str]:
        maps, secrets = [await given.client.list_all(kind, given.namespace) for kind in (CONFIG_MAPS, SECRETS)]
        return [each["metadata"]["name"] for each in (*maps, *secrets) if each["metadata"]["name"].startswith("made-")]

    assert len(await left()) == 2
    await given.deleted("made")

    async def nothing_left() -> bool:
        return not await left()

    await eventually(nothing_left)


async def until_counted(given: Given, kind: str) -> None:
    """Wait until the operator's metric counts a deleted orphan. The operator increments it only after the deletion."""

    async def counted() -> bool:
        return (await samples(given.client))[f'multistep_orphans_deleted_total{{kind="{kind}"}}'] > 0

    await eventually(counted)


async def fetched(given: Given, uri: str) -> bool:
    """Return whether the results at this URI can be downloaded."""
    place = locate(uri)
    assert isinstance(place, ServicePath)
    try:
        return bool([chunk async for chunk in given.client.raw_stream(place.path)])
    except NotFound:
        return False
