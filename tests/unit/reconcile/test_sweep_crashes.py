"""Kill the operator at each API call of a sweep's reconciles, start a new one with an empty memory, compare the results."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any, cast

import pytest

from multistep.errors import NotFound, Unavailable
from multistep.kube.cluster_protocols import Cluster, Object
from multistep.kube.resources import SWEEPS, Resource
from tests.support.fake_cluster import FakeCluster
from tests.support.faults import Faults, Killed
from tests.support.in_part import in_part_or_whole, tried
from tests.support.sweep_world import KEY, Events, SweepWorld, assert_each_once, end_of, reconciles, started, sweep
from tests.support.wrapped_cluster import Jittery, Wrapped
from tests.unit.reconcile.test_reconcile_lost_pods import Unserved


def suspend(world: SweepWorld) -> None:
    world.change(suspend=True)
    resume_later(world)


def resume_later(world: SweepWorld) -> None:
    """Resume the sweep after 50 seconds: once its active trials have finished, no other event would requeue a suspended sweep."""
    change = world.cluster.objects["TrialSweep", *KEY]["metadata"]["generation"]

    def resume() -> None:
        if world.now > suspended + 50 and world.cluster.objects["TrialSweep", *KEY]["metadata"]["generation"] == change:
            world.change(suspend=False)

    suspended = world.now
    world.each_round = resume


def append(world: SweepWorld) -> None:
    """Append a task to the open sweep, as its client does."""
    tasks = world.cluster.objects["TrialSweep", *KEY]["spec"]["tasks"]
    world.change(tasks=[*tasks, {**tasks[0], "name": f"t{len(tasks)}"}])


BRANCHED = sweep(agents=[{"name": "a", "agent": {"name": "nop"}}], attempts=1, branch={"at": ["b", "c"]})
SCENARIOS: dict[str, dict[str, Any]] = {
    "plain": {},
    "task by task, one at a time": {"manifest": sweep(order="Tasks", parallelism=1, attempts=1)},
    "suspended for a while": {"happens": {2: suspend}},
    "the next ones ready": {"manifest": sweep(prestart=2)},
    "the next ones ready, suspended for a while": {"manifest": sweep(prestart=1), "happens": {2: suspend}},
    "deadline": {"manifest": sweep(activeDeadlineSeconds=25)},
    "a client that died": {"manifest": sweep(lease={"seconds": 25})},
    "stopped": {"happens": {3: lambda world: world.change(stop=True)}},
    "budget": {"manifest": sweep(stopWhen={"podHours": 0.25})},
    "branches": {"manifest": BRANCHED},
    "a retry while trials run": {"happens": {6: lambda world: world.change(retries=[4])}},
    "retries of a finished sweep": {"happens": {8: lambda world: world.change(retries=[4, 4])}},
    "tasks appended until it is closed": {
        "manifest": sweep(open=True, order="Tasks", agents=[{"name": "a", "agent": {"name": "nop"}}]),
        "happens": {1: append, 4: append, 8: lambda world: world.change(open=False)},
    },
    "branches, suspended before they are planned": {"manifest": BRANCHED, "happens": {1: suspend}},
}
FAULTS: dict[str, Callable[[], BaseException]] = {
    "dies": Killed,
    "a call fails": lambda: Unavailable("no answer"),
    "an error that nobody expects": lambda: TypeError("no string"),
    "a cancelled future": asyncio.CancelledError,
}
EVENTS: tuple[Events, ...] = ("prompt", "dropped", "duplicated", "delayed")


async def undisturbed(options: dict[str, Any]) -> SweepWorld:
    world = SweepWorld(**options)
    await world.run()
    assert_each_once(world)
    assert not world.errors
    return world


@in_part_or_whole
@pytest.mark.parametrize("options", SCENARIOS.values(), ids=SCENARIOS)
@pytest.mark.parametrize("what", FAULTS.values(), ids=FAULTS)
async def test_wherever_it_happens_each_trial_is_created_once_and_the_sweep_ends_the_same(
    options: dict[str, Any], what: Callable[[], BaseException], whole: bool
) -> None:
    calm = await undisturbed(options)
    for at in tried(range(1, len(calm.faults.trace) + 1), whole, every=9, first=list(SCENARIOS.values()).index(options)):
        world = SweepWorld(**options, faults=Faults().fail(at, what()))
        await world.run()
        assert_each_once(world)
        assert comparable(world, options) == comparable(calm, options), f"point {at}: {calm.faults.trace[at - 1]}"


def comparable(world: SweepWorld, options: dict[str, Any]) -> Any:
    """Return what must be equal in all runs: the sweep's end, or only its reason if a user or a limit ended it."""
    limits = {"activeDeadlineSeconds", "stopWhen", "lease"} & options.get("manifest", sweep())["spec"].keys()
    if limits or world.why[1] == "Stopped":
        return world.why, not world.active
    return end_of(world)


@pytest.mark.parametrize("events", EVENTS)
@pytest.mark.parametrize("options", SCENARIOS.values(), ids=SCENARIOS)
async def test_whatever_becomes_of_watch_events_the_sweep_ends_the_same(options: dict[str, Any], events: Events) -> None:
    calm = await undisturbed(options)
    world = SweepWorld(**options, events=events)
    await world.run()
    assert_each_once(world)
    assert comparable(world, options) == comparable(calm, options)


@in_part_or_whole
async def test_dying_repeatedly_is_no_worse_whatever_is_received(whole: bool) -> None:
    calm = await undisturbed({})
    points, chance = len(calm.faults.trace), random.Random(1)
    for number in range(60 if whole else 12):
        faults = Faults()
        for _ in range(chance.randint(2, 8)):
            faults.fail(chance.randint(1, points), chance.choice([Killed(), Unavailable("no answer")]))
        world = SweepWorld(faults=faults, events=EVENTS[number % len(EVENTS)])
        await world.run()
        assert_each_once(world)
        assert end_of(world) == end_of(calm)


@in_part_or_whole
async def test_wherever_a_trial_is_deleted_it_is_never_created_again(whole: bool) -> None:
    calm = await undisturbed({})
    for at in tried(range(1, len(calm.faults.trace) + 1), whole, every=9):
        world = SweepWorld()

        def delete(world: SweepWorld = world) -> None:
            if there := world.active:
                world.cluster.remove("MultiStepTrial", KEY[0], there[-1]["metadata"]["name"])

        world.faults.fail(at, delete)
        await world.run()
        assert_each_once(world)
        assert world.why == ("Complete", "SweepComplete")
        assert world.status.trials.created == 8 and world.status.trials.deleted == 8 - len(world.trials)


@pytest.mark.parametrize("seed", range(15))
async def test_two_operators_at_once_make_each_trial_once_and_never_too_many(seed: int) -> None:
    """A Lease cannot stop a former leader that still works. Here, the former leader sees its own writes but no watch events."""
    calm, chance = await undisturbed({}), random.Random(seed)
    world = SweepWorld(wrap=lambda cluster: cast(Cluster, Jittery(cluster, chance)))
    old = world.fresh()
    for _ in range(200):
        await asyncio.gather(world.sweeps.reconcile(KEY), old.reconcile(KEY))
        world.now += 10.0
        if there := world.active:
            world.end(there[chance.randrange(len(there))])
            if chance.random() < 0.2:
                old.cache.invalidate(KEY[0])  # the former leader lists the trials again
        elif world.why[0] == "Complete":
            break
    assert_each_once(world)
    assert end_of(world) == end_of(calm)


class Stale(Wrapped):
    """A cluster whose at-th read of the sweep (from 1) returns the sweep as it was ``back`` versions before."""

    def __init__(self, cluster: FakeCluster, at: int, back: int) -> None:
        super().__init__(cluster)
        self.at, self.back = at, back
        self.history: list[Object] = []

    async def get(self, resource: Resource, namespace: str, name: str) -> Object:
        if resource != SWEEPS:
            return await self.cluster.get(resource, namespace, name)
        self.at -= 1
        now = await self.cluster.get(SWEEPS, namespace, name)
        if not self.history or self.history[-1] != now:
            self.history.append(now)
        return self.history[max(0, len(self.history) - 1 - self.back)] if self.at == 0 else now


@pytest.mark.parametrize("back", [1, 2, 5])
async def test_a_stale_read_of_the_sweep_makes_nothing_twice(back: int) -> None:
    calm = await undisturbed({})
    for at in range(2, 12):
        stale: list[Stale] = []

        def wrap(cluster: FakeCluster, at: int = at, stale: list[Stale] = stale) -> Cluster:
            stale.append(stale[0] if stale else Stale(cluster, at, back))
            return cast(Cluster, stale[0])

        world = SweepWorld(wrap=wrap)
        await world.run()
        assert_each_once(world)
        assert end_of(world) == end_of(calm)


@in_part_or_whole
async def test_wherever_a_trial_of_a_sweep_with_branches_is_deleted_all_planned_ones_are_created_once(whole: bool) -> None:
    calm = await undisturbed({"manifest": BRANCHED})
    for at in tried(range(1, len(calm.faults.trace) + 1), whole, every=9):
        world = SweepWorld(manifest=BRANCHED)

        def delete(world: SweepWorld = world) -> None:
            if there := world.trials:
                world.cluster.remove("MultiStepTrial", KEY[0], there[0]["metadata"]["name"])
                world.sweeps = world.fresh()

        world.faults.fail(at, delete)
        await world.run()
        assert_each_once(world)
        assert world.why == ("Complete", "SweepComplete")
        assert world.status.trials.created == world.status.trials.total == len(world.made)


async def test_a_404_that_is_not_the_api_servers_does_not_end_the_reconciliation_of_a_sweep() -> None:
    world = SweepWorld(sweep())
    world.sweeps.cluster = cast(Cluster, Unserved(world.cluster, SWEEPS))
    with pytest.raises(NotFound):  # the queue then retries
        await world.sweeps.reconcile(KEY)


async def test_a_client_may_renew_its_lease_after_an_outage_of_the_api_server() -> None:
    """Without the API server the operator's process ends, and starts again, and no client can renew its lease."""
    world = SweepWorld(sweep(lease={"seconds": 25}))
    await reconciles(world, started)
    world.now += 300.0
    world.sweeps = world.fresh()
    for seconds in (0.0, 24.0):
        world.now += seconds
        await world.reconcile()
        assert world.why[0] == "Running" and not any(each["spec"].get("stop") for each in world.active)
    world.now += 2.0
    await world.reconcile()
    assert world.why == ("Halting", "LeaseExpired") and all(each["spec"]["stop"] for each in world.active)
    world.sweeps = world.fresh()
    await world.reconcile()
    assert world.why == ("Halting", "LeaseExpired"), "a lease that has expired stays expired"
