"""Test trials under a GitOps tool: another field manager applies them repeatedly, while they run and afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from markdown_it import MarkdownIt

from multistep.client.reconnecting_watch import WatchingClient
from multistep.kube.resources import CRDS, PODS, SWEEPS, TRIALS
from tests.docs import pages
from tests.e2e.given import DEADLINE_SECONDS, Object, finished, holds, in_agent
from tests.simulated.given import HOLD, Given, Step, trial
from tests.support.gitops import judged

MANAGER = "gitops"
ROOT = pages.ROOT
# API groups whose manifests are not applied here: their CRDs are not installed, or (apps) the cluster changes their fields.
FOREIGN = {"argoproj.io", "kustomize.toolkit.fluxcd.io", "source.toolkit.fluxcd.io", "apps"}
OPERATORS = "multistep"


async def synced(client: WatchingClient, manifest: Object) -> Object:
    """Apply the manifest as a GitOps tool does: with server-side apply, without force."""
    return await client.apply(manifest, field_manager=MANAGER, force=False)


# -- trials


@dataclass(frozen=True)
class SyncCase:
    """A trial, the state to wait for, and the verdict of kstatus and of Argo CD on that state."""

    manifest: Object
    reached: Callable[[Object], bool]
    verdict: tuple[str, str]


SYNC_CASES = [
    SyncCase(trial(Step("a", solve=HOLD), name="running"), in_agent, ("InProgress", "Progressing")),
    SyncCase(trial(Step("a"), name="complete", podCleanup="Never"), finished, ("Current", "Healthy")),
    SyncCase(trial(name="failed", config={"schema_version": "none"}), finished, ("Failed", "Degraded")),
    SyncCase(trial(Step("a"), name="held", suspend=True), lambda found: holds(found, "Suspended"), ("InProgress", "Suspended")),
]


async def test_a_synced_trial_stays_in_sync_and_is_never_run_again(given: Given) -> None:
    await asyncio.gather(*(stays_in_sync(given, case) for case in SYNC_CASES))
    await a_trial_whose_pod_is_gone_is_not_run_again(given, "complete")


async def stays_in_sync(given: Given, case: SyncCase) -> None:
    manifest = given.ours(case.manifest)
    manifest["metadata"]["namespace"] = given.namespace
    new = await synced(given.client, manifest)
    assert await judged(new) == ("InProgress", "Progressing"), "nobody saw it yet"
    name = manifest["metadata"]["name"]
    found = await given.until(name, case.reached)
    assert await judged(found) == case.verdict, found["status"]
    again = await synced(given.client, manifest)
    assert again["spec"] == manifest["spec"], "nothing was defaulted into it"
    assert again["metadata"]["generation"] == new["metadata"]["generation"] == 1
    assert _times(again) == _times(new), "the second time, nothing was there to write"
    owned = {each["manager"]: set(each["fieldsV1"]) for each in again["metadata"]["managedFields"]}
    assert owned.keys() == {MANAGER, OPERATORS} and owned[OPERATORS] == {"f:status"}


def _times(found: Object) -> list[str]:
    """Return the times at which the GitOps tool changed the object."""
    return [each["time"] for each in found["metadata"]["managedFields"] if each["manager"] == MANAGER]


async def a_trial_whose_pod_is_gone_is_not_run_again(given: Given, name: str) -> None:
    before = await given.get(name)
    await given.client.delete(PODS, given.namespace, f"{name}-1", grace_period_seconds=0)
    await given.without_pods(name)
    manifest = next(given.ours(case.manifest) for case in SYNC_CASES if case.manifest["metadata"]["name"] == name)
    manifest["metadata"]["namespace"] = given.namespace
    await synced(given.client, manifest)
    manifest["spec"]["podTTLSecondsAfterFinished"] = 86400  # a field that may change in a finished trial
    await synced(given.client, manifest)
    noted = await given.until(name, lambda found: found["status"]["observedGeneration"] == 2)
    assert await judged(noted) == ("Current", "Healthy")
    assert await given.pods(name) == []
    kept = ("attempt", "attempts", "rewards", "steps", "completionTime", "podUID", "results")
    assert {key: noted["status"].get(key) for key in kept} == {key: before["status"].get(key) for key in kept}


# -- the manifests in docs/ and examples/


def manifests() -> Iterator[tuple[str, Object]]:
    """Yield every Kubernetes manifest that a reader may copy: files below docs/ and examples/, and code blocks of pages."""
    for path in sorted([*(ROOT / "docs").rglob("*.yaml"), *(ROOT / "examples").rglob("*.yaml")]):
        yield from _documents(str(path.relative_to(ROOT)), path.read_text())
    for path in pages.paths():
        for token in MarkdownIt().parse(path.read_text()):
            if token.type == "fence" and token.info.split(" ")[0] == "yaml":
                yield from _documents(f"{path.relative_to(ROOT)}:{(token.map or [0])[0] + 1}", token.content)


def _documents(where: str, text: str) -> Iterator[tuple[str, Object]]:
    for number, each in enumerate(yaml.safe_load_all(text)):
        if isinstance(each, dict) and {"apiVersion", "kind"} <= each.keys():
            yield f"{where}#{number}", each


FOUND = dict(manifests())


def _is_foreign(manifest: Object) -> bool:
    return manifest["apiVersion"].partition("/")[0] in FOREIGN


def test_there_are_manifests_to_try() -> None:
    kinds = [each["kind"] for each in FOUND.values()]
    assert kinds.count("MultiStepTrial") >= 3 and "ConfigMap" in kinds
    assert {each["apiVersion"].partition("/")[0] for each in FOUND.values() if _is_foreign(each)} == FOREIGN


async def test_every_manifest_applies_twice_and_the_second_time_changes_nothing(given: Given) -> None:
    """Apply trials suspended: the test needs no rewards. The operator must not write fields that the manifest sets."""
    await asyncio.gather(*(applies_twice(given, where, each) for where, each in FOUND.items() if not _is_foreign(each)))


async def applies_twice(given: Given, where: str, manifest: Object) -> None:
    mine = given.ours(manifest)
    is_ours = mine["kind"] in (TRIALS.kind, SWEEPS.kind)
    names, resource = mine["metadata"], await given.client.resource_of(mine)
    # some manifests have the same name
    names["namespace"], names["name"] = given.namespace, f"{names['name']}-{abs(hash(where)) % 10**6}"
    if is_ours:
        mine["spec"]["suspend"] = True
    first = await synced(given.client, mine)
    if is_ours:
        first = await given.until(names["name"], lambda found: holds(found, "Suspended"), resource)
    second = await synced(given.client, mine)
    async with asyncio.timeout(DEADLINE_SECONDS):
        while second["metadata"]["resourceVersion"] != first["metadata"]["resourceVersion"]:
            assert _of_tools(second) == _of_tools(first), where  # only the status may differ
            first, second = second, await synced(given.client, mine)
    assert all(second[key] == value for key, value in mine.items() if key not in ("metadata", "status")), where
    if not resource.namespaced:  # a cluster-scoped object outlives the namespace
        await given.client.delete(resource, None, names["name"])


def _of_tools(found: Object) -> Object:
    """Return the object without its status and without metadata that changes with every write."""
    changing = ("resourceVersion", "managedFields")
    kept = [each for each in found["metadata"]["managedFields"] if each.get("subresource") != "status"]
    return {
        **{key: value for key, value in found.items() if key != "status"},
        "metadata": {key: value for key, value in found["metadata"].items() if key not in changing} | {"managedFields": kept},
    }


@pytest.mark.parametrize("file", sorted((ROOT / "crds").glob("*.yaml")), ids=lambda file: file.stem)
async def test_the_crds_apply_twice_unchanged(given: Given, file: Path) -> None:
    crd = yaml.safe_load(await asyncio.to_thread(file.read_text))
    there = await given.client.get(CRDS, None, crd["metadata"]["name"])
    applied = await given.client.apply(crd, field_manager="helm", dry_run=True)
    assert applied["spec"]["versions"] == there["spec"]["versions"]
