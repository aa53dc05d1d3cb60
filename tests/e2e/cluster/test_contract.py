"""Run the fake cluster's contract tests against a real cluster, and test behaviour of the client that only a real cluster shows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest
import yaml

from multistep.client.reconnecting_watch import WatchingClient
from multistep.errors import NotFound, Unavailable
from multistep.kube.resources import CONFIG_MAPS, EVENTS, PODS, TRIALS
from multistep.reconcile.trial.emit_events import event_manifest
from tests.e2e.cluster.conftest import ROOT, Pod
from tests.e2e.given import DEADLINE_SECONDS
from tests.support.cluster_contract import CASES, make_idle_trial
from tests.support.waiting import eventually


@pytest.fixture
async def cluster(client: WatchingClient) -> AsyncIterator[WatchingClient]:
    """Return the client of a cluster in which the trials' CRD is installed."""
    crd = yaml.safe_load((ROOT / "crds" / "multistep.dev_multisteptrials.yaml").read_text())
    await client.apply(crd, field_manager="multistep-e2e")
    await eventually(lambda: _served(client))
    yield client


async def _served(client: WatchingClient) -> bool:
    try:
        await client.list_all(TRIALS, "default")
    except (NotFound, Unavailable):
        return False
    return True


@pytest.mark.parametrize("name", CASES)
async def test_contract(cluster: WatchingClient, namespace: str, name: str) -> None:
    await CASES[name](cluster, namespace)


async def test_an_event_can_be_read_beside_its_trial(cluster: WatchingClient, namespace: str) -> None:
    trial = await make_idle_trial(cluster, namespace, "eventful")
    await cluster.create(event_manifest(trial, reason="StepFinished", message="step a: 0.5"))
    events = await cluster.list_all(EVENTS, namespace, field_selector="regarding.name=eventful")
    assert [(each["reason"], each["note"]) for each in events] == [("StepFinished", "step a: 0.5")]


async def test_any_kind_is_found_by_discovery(client: WatchingClient, namespace: str) -> None:
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role"}
    made = await client.apply({**role, "metadata": {"name": "r", "namespace": namespace}, "rules": []})
    assert made["metadata"]["uid"]
    with pytest.raises(NotFound, match="no Roll of"):
        await client.apply({**role, "kind": "Roll", "metadata": {"name": "r"}})


async def test_a_watch_reports_every_change(client: WatchingClient, namespace: str) -> None:
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "w", "namespace": namespace}}
    seen: list[tuple[str, object]] = []
    async with aclosing(client.watch(CONFIG_MAPS, namespace, field_selector="metadata.name=w")) as events:
        await client.apply({**config_map, "data": {"n": "1"}})
        async with asyncio.timeout(DEADLINE_SECONDS):
            async for event in events:
                seen.append((event.type, event.object["data"]["n"]))
                if event.type == "ADDED":  # the watch has started: the next change is not part of its initial list
                    await client.apply({**config_map, "data": {"n": "2"}})
                    await client.delete(CONFIG_MAPS, namespace, "w")
                if event.type == "DELETED":
                    break
    assert seen == [("ADDED", "1"), ("MODIFIED", "2"), ("DELETED", "2")]


async def test_a_list_of_many_pages_is_whole(client: WatchingClient, namespace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("multistep.kube.list_objects.PAGE_OBJECTS", 3)
    names = [f"page-{number}" for number in range(10)]
    metadata = [{"name": name, "namespace": namespace, "labels": {"paged": "yes"}} for name in names]
    made = [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": each} for each in metadata]
    await asyncio.gather(*(client.create(each) for each in made))
    listed = await client.list_all(CONFIG_MAPS, namespace, label_selector="paged=yes")
    assert [each["metadata"]["name"] for each in listed] == names
    one_by_one = [each async for each in client.iterate(CONFIG_MAPS, namespace, label_selector="paged=yes")]
    assert [each["metadata"]["name"] for each in one_by_one] == names


async def test_logs_stream_as_raw_bytes(client: WatchingClient, pod: Pod) -> None:
    path = f"{PODS.path(pod.namespace, pod.name, 'log')}"
    assert b"".join([chunk async for chunk in client.raw_stream(path)]) == b""
