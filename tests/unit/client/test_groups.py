"""Groups of rollouts in one open sweep: submitted as earlier ones are taken, yielded as they finish, cancelled, and paused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from itertools import count
from typing import Any

import pytest

from multistep.client import AsyncClient, Client
from multistep.client.rollouts import open_sweep
from multistep.client.rollouts.groups import AsyncRollouts
from multistep.errors import MultistepError, NotFound, Unavailable, UsageError
from multistep.kube.client import ClusterClient
from tests.support.waiting import eventually
from tests.unit.cli.fakes import status

from .fakes import FakeCluster, excluded, scored

TASK: dict[str, Any] = {"name": "t", "inline": {"config": {}}}
CREDENTIALS = [{"name": "OPENAI_API_KEY", "value": "key"}]
HOSTED = {"name": "a", "agent": {"name": "terminus-2", "model": "openai/policy", "access": "Gateway", "credentials": CREDENTIALS}}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    fake = FakeCluster()
    monkeypatch.setattr(ClusterClient, "connect", FakeCluster.connecting(fake))
    return fake


@pytest.fixture
async def client(cluster: FakeCluster) -> AsyncIterator[AsyncClient]:
    async with AsyncClient() as connected:
        yield connected


def tasks() -> Iterator[dict[str, Any]]:
    return ({**TASK, "name": f"t{number}"} for number in count())


def sweeps(cluster: FakeCluster) -> list[str]:
    """Return the names of the sweeps in the order of their creation."""
    return [name for kind, name in cluster.objects if kind == "TrialSweep"]


def spec_of(cluster: FakeCluster, sweep: str) -> Any:
    return cluster.objects["TrialSweep", sweep]["spec"]


def names(cluster: FakeCluster, sweep: str) -> list[str]:
    """Return the names of a sweep's tasks."""
    return [each["name"] for each in spec_of(cluster, sweep)["tasks"]]


def create_trials(cluster: FakeCluster, sweep: str, first: int, end: int) -> None:
    """Create the trials from one number to before another."""
    for number in range(first, end):
        cluster.trial(sweep, str(number), {})


def finish_group(cluster: FakeCluster, sweep: str, group: int) -> None:
    """Finish the trials of a group of two, the second of which is lost."""
    create_trials(cluster, sweep, len(cluster.numbers), 2 * group)
    cluster.trial(sweep, str(2 * group), scored(1.0))
    cluster.trial(sweep, str(2 * group + 1), excluded())


async def submitted(cluster: FakeCluster, number: int) -> str:
    """Wait until a number of tasks is in the only sweep; return its name."""

    async def exist() -> bool:
        return bool(sweeps(cluster)) and len(names(cluster, sweeps(cluster)[-1])) >= number

    await eventually(exist)
    return sweeps(cluster)[-1]


async def started(rollouts: AsyncRollouts[Any]) -> tuple[Any, asyncio.Task[Any]]:
    """Start to iterate, and return the iterator and the task that waits for the first group."""
    found = rollouts.__aiter__()
    first = asyncio.create_task(found.__anext__())
    await asyncio.sleep(0)
    return found, first


async def test_groups_are_yielded_as_they_finish_and_the_next_is_appended_when_one_is_taken(
    client: AsyncClient, cluster: FakeCluster
) -> None:
    groups, first = await started(client.rollouts(tasks(), group=2, ahead=2))
    sweep = await submitted(cluster, 2)
    spec = spec_of(cluster, sweep)
    assert (spec["attempts"], spec["parallelism"], spec["lease"], spec["open"]) == (2, 4, {"seconds": 60}, True)
    assert names(cluster, sweep) == ["t0-1", "t1-2"]
    finish_group(cluster, sweep, 1)
    found = await first
    assert (found.sweep, found.name, found.task) == (sweep, "t1-2", {**TASK, "name": "t1"})
    assert [(each.reward, each.valid) for each in found.rollouts] == [(1.0, True), (None, False)]
    assert names(cluster, sweep) == ["t0-1", "t1-2", "t2-3"]  # while the caller has the group
    finish_group(cluster, sweep, 0)
    assert (await groups.__anext__()).name == "t0-1"
    assert names(cluster, sweep)[3:] == ["t3-4"] and sweeps(cluster) == [sweep]
    await groups.aclose()
    assert spec_of(cluster, sweep)["stop"] is True


async def test_the_sweep_is_closed_and_not_stopped_when_there_are_no_more_tasks(client: AsyncClient, cluster: FakeCluster) -> None:
    groups, first = await started(client.rollouts([TASK], group=2))
    sweep = await submitted(cluster, 1)
    finish_group(cluster, sweep, 0)
    await first
    assert spec_of(cluster, sweep)["open"] is False
    with pytest.raises(StopAsyncIteration):
        await groups.__anext__()
    assert "stop" not in spec_of(cluster, sweep)


async def test_a_long_list_of_tasks_is_followed_by_a_new_sweep(
    client: AsyncClient, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_sweep, "MAX_TASKS", 2)
    groups, first = await started(client.rollouts(tasks(), group=2, ahead=3))
    await submitted(cluster, 1)
    while len(sweeps(cluster)) < 2:
        await asyncio.sleep(0)
    one, two = sweeps(cluster)
    assert (names(cluster, one), names(cluster, two)) == (["t0-1", "t1-2"], ["t2-3"])
    assert (spec_of(cluster, one)["open"], spec_of(cluster, two)["open"]) == (False, True)
    finish_group(cluster, two, 0)
    assert (await first).name == "t2-3"
    finish_group(cluster, one, 0)
    finish_group(cluster, one, 1)
    cluster.finish(one)
    assert {(await groups.__anext__()).name, (await groups.__anext__()).name} == {"t0-1", "t1-2"}
    await groups.aclose()


async def test_a_sweep_that_ends_early_ends_the_loop_after_the_groups_that_it_had(
    client: AsyncClient, cluster: FakeCluster
) -> None:
    groups, first = await started(client.rollouts([TASK, TASK], group=2))
    sweep = await submitted(cluster, 2)
    cluster.trial(sweep, "one", scored(1.0))
    cluster.put("TrialSweep", sweep, status=status("Failed"))
    assert len((await first).rollouts) == 1
    assert (await groups.__anext__()).rollouts == ()
    with pytest.raises(MultistepError, match=f"sweep {sweep} ended"):
        await groups.__anext__()


async def test_a_deleted_sweep_ends_the_loop_and_a_deleted_trial_its_group(client: AsyncClient, cluster: FakeCluster) -> None:
    groups, first = await started(client.rollouts(tasks(), group=2))
    sweep = await submitted(cluster, 2)
    create_trials(cluster, sweep, 0, 2)
    await eventually_seen(cluster)
    cluster.remove("MultiStepTrial", trial_names(cluster)[0])
    cluster.trial(sweep, "1", scored(0.5))
    assert [each.reward for each in (await first).rollouts] == [0.5]
    cluster.remove("TrialSweep", sweep)
    with pytest.raises(NotFound):
        await groups.__anext__()


def trial_names(cluster: FakeCluster) -> list[str]:
    return [name for kind, name in cluster.objects if kind == "MultiStepTrial"]


async def eventually_seen(cluster: FakeCluster) -> None:
    """Let the client handle all events."""
    for _ in range(50):
        await asyncio.sleep(0)


async def test_an_error_of_a_submission_is_raised(client: AsyncClient, cluster: FakeCluster) -> None:
    _, first = await started(client.rollouts(tasks(), group=2, ahead=1))
    sweep = await submitted(cluster, 1)
    await eventually_seen(cluster)
    cluster.patch_fails = [Unavailable("no answer")]
    finish_group(cluster, sweep, 0)
    with pytest.raises(Unavailable):
        await first
    assert [each async for each in client.rollouts([])] == []


async def test_a_cancelled_group_is_stopped_and_replaced_also_if_its_trials_do_not_exist_yet(
    client: AsyncClient, cluster: FakeCluster
) -> None:
    rollouts = client.rollouts(tasks(), group=2, ahead=1)
    groups, first = await started(rollouts)
    sweep = await submitted(cluster, 1)
    create_trials(cluster, sweep, 0, 1)
    await eventually_seen(cluster)
    (group,) = rollouts.active
    await rollouts.cancel(group)
    assert names(cluster, sweep) == ["t0-1", "t1-2"]
    create_trials(cluster, sweep, 1, 3)
    await eventually_seen(cluster)
    stopped = {name: cluster.objects["MultiStepTrial", name]["spec"].get("stop", False) for name in trial_names(cluster)}
    assert [stopped[name] for name in (*group.trials, rollouts.active[0].trials[0])] == [True, True, False]
    finish_group(cluster, sweep, 1)
    assert (await first).name == "t1-2"
    with pytest.raises(UsageError, match="no active group is or has t0-1"):
        await rollouts.cancel(group)
    await groups.aclose()


async def test_a_cancelled_rollout_ends_in_its_group(client: AsyncClient, cluster: FakeCluster) -> None:
    rollouts = client.rollouts(tasks(), group=2, ahead=1)
    groups, first = await started(rollouts)
    sweep = await submitted(cluster, 1)
    create_trials(cluster, sweep, 0, 2)
    await eventually_seen(cluster)
    one, _ = rollouts.active[0].trials
    await rollouts.cancel(one)
    assert cluster.objects["MultiStepTrial", one]["spec"]["stop"] is True
    cluster.trial(sweep, "0", excluded())
    cluster.trial(sweep, "1", scored(1.0))
    assert [each.reward for each in (await first).rollouts] == [None, 1.0]
    await groups.aclose()


def apply_weights(cluster: FakeCluster, sweep: str, in_flight: int = 0) -> None:
    """Report as the operator does what the gateway knows."""
    known = spec_of(cluster, sweep)["weights"]
    cluster.put("TrialSweep", sweep, status={"weights": {**known, "inFlight": in_flight}})


async def test_a_pause_ends_when_nothing_is_in_flight_and_a_new_version_drops_stale_groups(
    client: AsyncClient, cluster: FakeCluster
) -> None:
    rollouts = client.rollouts(tasks(), agent=HOSTED, group=2, ahead=1, max_staleness=1)
    groups, first = await started(rollouts)
    sweep = await submitted(cluster, 1)
    pause = asyncio.create_task(rollouts.pause())
    await eventually_seen(cluster)
    assert spec_of(cluster, sweep)["weights"] == {"version": "", "paused": True}
    apply_weights(cluster, sweep, in_flight=1)
    await eventually_seen(cluster)
    assert not pause.done()
    apply_weights(cluster, sweep)
    await pause
    for number, dropped in ((7, 0), (8, 1)):
        resume = asyncio.create_task(rollouts.resume(number))
        await eventually_seen(cluster)
        assert spec_of(cluster, sweep)["weights"] == {"version": str(number), "paused": False}
        apply_weights(cluster, sweep)
        await resume
        assert rollouts.dropped == dropped
    assert names(cluster, sweep) == ["t0-1", "t1-2"] and rollouts.active[0].updates == 0
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await groups.aclose()


async def test_a_new_sweep_has_the_version_that_was_set_before(client: AsyncClient, cluster: FakeCluster) -> None:
    rollouts = client.rollouts(tasks(), agent=HOSTED, group=2)
    await rollouts.set_version(3)
    groups, first = await started(rollouts)
    sweep = await submitted(cluster, 1)
    assert spec_of(cluster, sweep)["weights"] == {"version": "3", "paused": False}
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await groups.aclose()


async def test_arguments_that_cannot_be_are_refused(client: AsyncClient) -> None:
    with pytest.raises(UsageError, match="group and ahead must be at least 1: 0, 2"):
        client.rollouts([TASK], group=0)
    with pytest.raises(UsageError, match="spec: open is set by rollouts"):
        client.rollouts([TASK], spec={"open": False})


def test_the_blocking_client_iterates_over_groups(cluster: FakeCluster) -> None:
    with Client() as client:
        rollouts = client.rollouts([TASK], group=2)
        create = cluster.create

        async def created(manifest: dict[str, Any]) -> Any:
            found = await create(manifest)
            finish_group(cluster, manifest["metadata"]["name"], 0)
            return found

        cluster.create = created  # type: ignore[assignment, method-assign]
        (group,) = rollouts
        assert (rollouts.active, rollouts.dropped) == ((), 0)
        with pytest.raises(UsageError):
            rollouts.cancel("none")
    assert len(group.rollouts) == 2
