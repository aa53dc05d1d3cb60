"""Groups of rollouts: submitted as earlier ones are taken, yielded as they finish, and stopped when the loop ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import pytest

from multistep.client import AsyncClient, Client
from multistep.client.rollouts.groups import run_groups
from multistep.client.run import AsyncRun
from multistep.errors import NotFound, Unavailable, UsageError
from multistep.kube.client import ClusterClient
from tests.support.waiting import eventually

from .fakes import FakeCluster, excluded, scored

TASK: dict[str, Any] = {"name": "t", "inline": {"config": {}}}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    fake = FakeCluster()
    monkeypatch.setattr(ClusterClient, "connect", FakeCluster.connecting(fake))
    return fake


@pytest.fixture
async def client(cluster: FakeCluster) -> AsyncIterator[AsyncClient]:
    async with AsyncClient() as connected:
        yield connected


def sweeps(cluster: FakeCluster) -> list[str]:
    """Return the names of the sweeps in the order of their creation."""
    return [name for kind, name in cluster.objects if kind == "TrialSweep"]


def finish(cluster: FakeCluster, sweep: str) -> None:
    """Finish a sweep of two trials, one of which is lost."""
    cluster.trial(sweep, f"{sweep}-one", scored(1.0))
    cluster.trial(sweep, f"{sweep}-two", excluded())
    cluster.finish(sweep)


async def submitted(cluster: FakeCluster, number: int) -> list[str]:
    """Wait until a number of sweeps exist; return their names."""

    async def exist() -> bool:
        return len(sweeps(cluster)) >= number

    await eventually(exist)
    return sweeps(cluster)


async def test_groups_are_yielded_as_they_finish_and_the_next_is_submitted_when_one_is_taken(
    client: AsyncClient, cluster: FakeCluster
) -> None:
    tasks = count()
    groups = client.rollouts(({**TASK, "name": f"t{number}"} for number in tasks), group=2, ahead=2)
    first = asyncio.create_task(anext(groups))
    one, two = await submitted(cluster, 2)
    spec = cluster.objects["TrialSweep", one]["spec"]
    assert (spec["attempts"], spec["parallelism"], spec["lease"]) == (2, 2, {"seconds": 60})
    finish(cluster, two)
    found = await first
    assert (found.sweep, found.task) == (two, {**TASK, "name": "t1"})
    assert sorted((each.reward is None, each.valid) for each in found.rollouts) == [(False, True), (True, False)]
    assert len(await submitted(cluster, 3)) == 3  # while the caller has the group
    finish(cluster, one)
    assert (await anext(groups)).sweep == one
    assert len(await submitted(cluster, 4)) == 4 and next(tasks) == 4
    await groups.aclose()


async def test_groups_that_are_active_when_the_loop_ends_are_stopped(client: AsyncClient, cluster: FakeCluster) -> None:
    groups = client.rollouts([TASK] * 3, group=2)
    first = asyncio.create_task(anext(groups))
    one, _ = await submitted(cluster, 2)
    finish(cluster, one)
    await first
    await submitted(cluster, 3)
    await groups.aclose()
    stopped = [cluster.objects["TrialSweep", each]["spec"].get("stop", False) for each in sweeps(cluster)]
    assert stopped == [False, True, True]


async def test_an_error_of_a_group_ends_the_loop_and_stops_the_others(client: AsyncClient, cluster: FakeCluster) -> None:
    groups = client.rollouts([TASK, TASK], group=2)
    first = asyncio.create_task(anext(groups))
    one, two = await submitted(cluster, 2)
    cluster.remove("TrialSweep", one)
    with pytest.raises(NotFound):
        await first
    assert cluster.objects["TrialSweep", two]["spec"]["stop"] is True


async def test_an_error_of_a_submission_is_raised() -> None:
    async def submit(task: str) -> AsyncRun:
        raise Unavailable(task)

    with pytest.raises(Unavailable, match="t1"):
        await anext(run_groups(["t1"], submit, 1))
    none: list[str] = []
    assert [each async for each in run_groups(none, submit, 1)] == []


async def test_a_group_without_a_trial_is_an_error(client: AsyncClient) -> None:
    with pytest.raises(UsageError, match="group and ahead must be at least 1: 0, 2"):
        client.rollouts([TASK], group=0)


def test_the_blocking_client_iterates_over_groups(cluster: FakeCluster) -> None:
    with Client() as client:
        groups = client.rollouts([TASK], group=2)
        create = cluster.create

        async def created(manifest: dict[str, Any]) -> Any:
            found = await create(manifest)
            finish(cluster, manifest["metadata"]["name"])
            return found

        cluster.create = created  # type: ignore[assignment, method-assign]
        (group,) = groups
    assert len(group.rollouts) == 2
