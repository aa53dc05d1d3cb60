"""Test what happens to trials when their node is drained, through the eviction API that drains use."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from multistep.errors import NotFound, Unavailable
from multistep.kube.resources import PODS
from tests.e2e.given import WAITS, Given, Step, finished, reward, trial
from tests.e2e.operators import with_values
from tests.support.waiting import eventually


async def evict(given: Given, pod: str) -> None:
    """Evict the pod as `kubectl drain` does. Raise Unavailable (429) if a disruption budget forbids it, NotFound if it is gone."""
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": given.namespace}}
    path = PODS.path(given.namespace, pod, "eviction")
    await given.client._http.send("create", PODS, path, {}, body)


async def at_work(given: Given, name: str) -> str:
    """Wait until the trial's agent runs and return the pod's name."""
    found = await given.until(name, lambda each: ((each.get("status") or {}).get("steps") or [{}])[-1].get("phase") == "Agent")
    return str(found["status"]["podName"])


@pytest.fixture
async def drains_wait() -> AsyncIterator[None]:
    """Set the chart's value `drain: Wait`, which also grants the permissions for it; restore the values afterwards."""
    async with with_values("drain=Wait"):
        yield


@pytest.mark.long
@pytest.mark.alone
async def test_a_drain_waits_until_the_trial_is_finished_and_no_longer(given: Given, drains_wait: None) -> None:
    manifest = trial(Step("a", solve=WAITS, test=reward(0.25)), podCleanup="Never")
    name = manifest["metadata"]["name"]
    await given.applied(manifest)
    pod = await at_work(given, name)
    with pytest.raises(Unavailable) as refused:
        await evict(given, pod)
    assert refused.value.status == 429
    await given.go(name)
    done = (await given.until(name, finished))["status"]
    assert (done["rewards"], done["attempt"], done.get("attempts", [])) == ({"reward": 0.25}, 1, [])
    assert len(await given.pods(name)) == 1

    async def evicted() -> bool:
        with suppress(Unavailable):  # evictions may be denied for a moment after the operator deletes the budget
            await evict(given, pod)
            return True
        return False

    await eventually(evicted)
    await given.without_pods(name)
    with pytest.raises(NotFound):
        await given.client.get(PODS, given.namespace, pod)
