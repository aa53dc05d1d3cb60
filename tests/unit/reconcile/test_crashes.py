"""Kill the operator at every point where it calls the outside world, start a new one with an empty memory, compare the results.

The operator is killed before each call to the API server or the results volume, after each write (it is stored, but the
response is lost), and before each frame to or from a runner (the frame is lost).
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, TypeVar, cast

import pytest

from multistep.api.trial.trial import KIND
from multistep.errors import GatewayUnavailable, NotFound, StoreError, StreamLost, Unavailable
from multistep.kube.cluster_protocols import Cluster, ExecStream, Object
from multistep.kube.resources import PODS, TRIALS, Resource
from multistep.reconcile.queue.work_queue import AT_NEXT_EVENT, Requeue
from tests.support import crash_counts
from tests.support.fake_cluster import FakeCluster
from tests.support.faults import Faults, Killed
from tests.support.in_part import in_part_or_whole, tried
from tests.support.recorded_run import RecordedRun, assert_each_phase_once, end_of
from tests.support.world import KEY, World
from tests.support.wrapped_cluster import Jittery, Wrapped
from tests.unit.reconcile.scenarios import SCENARIOS, Scenario, lose_pod

Point = TypeVar("Point")
LONG = SCENARIOS["long phases"].options
APART = SCENARIOS["verified apart"].options
VARIANTS = (
    *("prompt events", "dropped events", "duplicated events", "delayed events"),
    *("read the version before", "read an old version"),
)


STRIDE = 37  # the short form of the tests tries every 37th point, in each scenario from another one on


def variants(scenario: Scenario, number: int) -> Sequence[str]:
    """Return the variants that the long form of the tests tries for crash number ``number``. The short form tries one."""
    return VARIANTS if scenario.all_variants else (VARIANTS[0], VARIANTS[1:][number % len(VARIANTS[1:])])


def after(run: RecordedRun, at: int, variant: str) -> World | None:
    """Return the world that the next operator finds after a crash at point ``at``; None if the variant (one of VARIANTS) cannot
    occur there."""
    match variant:
        case "read the version before":
            return run.after_death_with_stale_reads(at, lambda versions: versions - 1)
        case "read an old version":
            return run.after_death_with_stale_reads(at, lambda versions: versions // 2)
    return run.after_death(at, events=variant.removesuffix(" events"))


def tried_in(scenario: Scenario, points: Sequence[Point], whole: bool) -> Sequence[Point]:
    """Return the points to try in a scenario. The short forms of all scenarios try most calls and variants."""
    return tried(points, whole, every=STRIDE, first=list(SCENARIOS.values()).index(scenario))


async def undisturbed(options: Mapping[str, Any]) -> World:
    world = World(**options)
    await world.run()
    assert world.condition[0] == "Complete"
    assert world.errors == []
    return world


def failing(point: str) -> Exception:
    """Return the exception that the call at this point raises in tests in which the call fails and the operator survives."""
    if point.startswith(("send", "receive")):
        return StreamLost("the stream was cut")
    if point.startswith("models"):
        return GatewayUnavailable("no answer")
    return StoreError("no space left") if point.startswith("volume") else Unavailable("no answer")


async def recorded_run(scenario: Scenario) -> RecordedRun:
    run = await RecordedRun(scenario.options).record()
    status = run.world.status
    assert run.world.errors == []
    assert run.world.condition[:2] == scenario.condition
    assert (status.rewards or {}).get("reward") == scenario.reward
    assert tuple(each.reason for each in status.attempts) == scenario.attempts
    assert_each_phase_once(run.world)
    return run


@in_part_or_whole
@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS)
async def test_wherever_the_operator_dies_and_whatever_the_next_one_reads_the_trial_ends_the_same(
    scenario: Scenario, whole: bool
) -> None:
    """Crashes between the same two changes of the world leave the same state, so only one of these points is tested."""
    run = await recorded_run(scenario)
    runs: Counter[str] = Counter()
    points = list({state: at for at, state in enumerate(run.states)}.values())
    for number, at in enumerate(tried_in(scenario, points, whole)):
        for variant in variants(scenario, number) if whole else [VARIANTS[number % len(VARIANTS)]]:
            if (world := after(run, at, variant)) is not None:
                await world.run(first=1.0)
                await world.run(first=300.0)  # the resync, after 300 s, requeues the trial if an event was missed
                run.assert_same_end(world, f"{variant}, at point {at}: {run.trace[at]}")
                runs[f"run died, {variant}"] += 1
    crash_counts.crashes.update(scenarios=1, points=len(run.trace), states=len(set(run.states)), **runs)


@pytest.mark.parametrize(
    "scenario",
    [each for each in SCENARIOS.values() if each.fail_calls],
    ids=[k for k, v in SCENARIOS.items() if v.fail_calls],
)
@in_part_or_whole
async def test_whatever_call_fails_the_trial_ends_the_same(scenario: Scenario, whole: bool) -> None:
    run = await recorded_run(scenario)
    points = list(enumerate(run.trace))
    for at, point in tried_in(scenario, points, whole):
        world = run.with_fault(at, failing(point))
        await world.run()
        run.assert_same_end(world, f"point {at} failed: {point}")
        crash_counts.crashes["run a call failed"] += 1


@in_part_or_whole
async def test_wherever_the_pod_is_lost_the_trial_restarts_and_ends_the_same(whole: bool) -> None:
    run = await recorded_run(SCENARIOS["short"])
    points = tried(list(enumerate(run.trace)), whole, every=17)
    for at, point in points:
        world = run.with_fault(at, lose_pod)
        await world.run()
        status = world.status
        assert world.condition[0] == "Complete", point
        assert [each.reason for each in status.attempts] in ([], ["PodDeleted"]), point
        assert (status.rewards, world.pods) == (run.world.status.rewards, []), point
        assert world.kept.steps == run.end["steps"], point
        assert_each_phase_once(world)
    crash_counts.crashes["run the pod was lost"] += len(points)


def delete_trial(world: World) -> None:
    """Delete the trial and its dependents, as a user does."""
    if (KIND, *KEY) in world.cluster.objects:
        world.cluster.remove(KIND, *KEY)


@in_part_or_whole
@pytest.mark.parametrize("name", ["long phases", "verified apart"])
async def test_wherever_the_trial_is_deleted_nothing_of_it_continues(name: str, whole: bool) -> None:
    run = await recorded_run(SCENARIOS[name])
    for at, point in tried(list(enumerate(run.trace)), whole, every=17):
        for world, first in ((run.with_fault(at, delete_trial), None), (run.after_death(at), 1.0)):
            if first:
                delete_trial(world)
            await world.run(first=first)
            # Kubernetes's garbage collector deletes the objects that the trial owns.
            left = [each for each in world.cluster.objects.values() if "trial-uid" not in owners(each)]
            assert left == [], point
            assert_each_phase_once(world)
            assert sum(each.startswith("create Pod") for each in world.cluster.writes) <= len(run.world.cluster.runners)
            crash_counts.crashes["run the trial was deleted"] += 1


def owners(each: Object) -> list[str]:
    return [owner["uid"] for owner in each["metadata"].get("ownerReferences", [])]


@in_part_or_whole
async def test_dying_repeatedly_is_no_worse(whole: bool) -> None:
    """The operator dies at random points, chosen with a fixed seed."""
    calm = await undisturbed(LONG)
    wanted, points = end_of(calm), len(calm.faults.trace)
    chance = random.Random(1)
    trials = 60 if whole else 12
    for _ in range(trials):
        faults = Faults()
        for _ in range(chance.randint(2, 6)):
            faults.fail(chance.randint(1, points), chance.choice([Killed(), Unavailable("no answer")]))
        world = World(**LONG, faults=faults)
        await world.run()
        assert end_of(world) == wanted
        assert_each_phase_once(world)
    print(f"\n{trials} trials with two to six deaths and failures each")


@pytest.mark.parametrize("events", ["dropped", "duplicated", "delayed"])
async def test_whatever_becomes_of_watch_events_the_trial_ends_the_same(events: str) -> None:
    for options in (LONG, APART):
        wanted = end_of(await undisturbed(options))
        world = World(**options, events=events)  # type: ignore[arg-type]
        await world.run()
        assert end_of(world) == wanted
        assert_each_phase_once(world)


@dataclass
class Stale(Wrapped):
    """A cluster that returns a stale trial once: read number ``at`` (from 1) returns the trial of ``back`` status writes ago."""

    at: int
    back: int
    history: list[Object] = field(default_factory=list)

    async def get(self, resource: Resource, namespace: str, name: str) -> Object:
        if resource != TRIALS:
            return await self.cluster.get(resource, namespace, name)
        self.at -= 1
        return (
            self.history[max(0, len(self.history) - 1 - self.back)]
            if self.at == 0
            else await self.cluster.get(TRIALS, namespace, name)
        )

    async def apply_status(self, resource: Resource, namespace: str, name: str, **options: Any) -> Object:
        self.history = self.history or [await self.cluster.get(TRIALS, namespace, name)]
        self.history.append(await self.cluster.apply_status(resource, namespace, name, **options))
        return self.history[-1]


@in_part_or_whole
async def test_a_stale_read_of_the_trial_is_found_out_by_its_first_write(whole: bool) -> None:
    calm = await undisturbed(LONG)
    wanted = end_of(calm)
    reads = [each for each in calm.faults.trace if each.startswith("get MultiStepTrial")]
    points = tried(list(product(range(2, len(reads) + 1), (1, 2, 3, 5, 8))), whole, every=9)
    for at, back in points:
        stale: list[Cluster] = []

        def wrap(cluster: FakeCluster, at: int = at, back: int = back, stale: list[Cluster] = stale) -> Cluster:
            stale.append(cast(Cluster, stale[0] if stale else Stale(cluster, at, back)))
            return stale[0]

        world = World(**LONG, wrap=wrap)
        await world.run()
        assert end_of(world) == wanted, f"read {at}, {back} versions back"
        assert_each_phase_once(world)
    print(f"\n{len(points)} stale reads")


@dataclass
class Late(Wrapped):
    """A cluster that returns a pod's readiness as it was ``reads`` requests ago, as if the kubelet were slow."""

    reads: int
    reported: list[Object] = field(default_factory=list)

    async def get(self, resource: Resource, namespace: str, name: str) -> Object:
        pod = await self.cluster.get(resource, namespace, name)
        if resource != PODS:
            return pod
        self.reported.append(pod["status"]["conditions"][0])
        late = self.reported[max(0, len(self.reported) - 1 - self.reads)]
        return {**pod, "status": {**pod["status"], "conditions": [late]}}


@pytest.mark.parametrize("reads", [1, 2, 5])
async def test_a_readiness_that_comes_late_costs_time_only(reads: int) -> None:
    wanted = end_of(await undisturbed(LONG))
    world = World(**LONG, wrap=lambda cluster: cast(Cluster, Late(cluster, reads)))
    await world.run()
    assert end_of(world) == wanted
    assert_each_phase_once(world)


@dataclass
class Vanishing(Wrapped):
    """A cluster in which the pod is deleted after the operator has read it and before its first exec session."""

    gone: bool = False

    async def open_exec(self, namespace: str, pod: str, *rest: Any) -> ExecStream:
        if not self.gone:
            self.gone = True
            self.cluster.remove("Pod", namespace, pod)
        return await self.cluster.open_exec(namespace, pod, *rest)


async def test_a_pod_that_goes_between_read_and_exec_is_read_again() -> None:
    world = World(wrap=lambda cluster: cast(Cluster, Vanishing(cluster)))
    await world.run()
    assert world.condition[0] == "Complete"
    assert [each.reason for each in world.status.attempts] == ["PodDeleted"]


@in_part_or_whole
@pytest.mark.parametrize(("options", "seeds"), [(LONG, range(30)), (APART, range(15))], ids=["long phases", "verified apart"])
async def test_two_operators_at_once_start_each_phase_once(options: Mapping[str, Any], seeds: range, whole: bool) -> None:
    """A Lease cannot stop a former leader's requests, so two operators may work on a trial for a while."""
    wanted = end_of(await undisturbed(options))
    conflicts, here = 0, tried(seeds, whole, every=17)
    for seed in here:
        chance = random.Random(seed)
        world = World(**options, wrap=lambda cluster, chance=chance: cast(Cluster, Jittery(cluster, chance)))  # type: ignore[misc]
        operators = [world.fresh(), world.fresh()]
        for _ in range(200):
            found = await asyncio.gather(*(each.reconcile(KEY) for each in operators), return_exceptions=True)
            unforeseen = [each for each in found if isinstance(each, BaseException) and not isinstance(each, StreamLost | NotFound)]
            assert not unforeseen, unforeseen
            conflicts += found.count(Requeue(0.5))
            if found == [AT_NEXT_EVENT, AT_NEXT_EVENT]:
                break
            world.now += 1.0 if Requeue(0.5) in found else 10.0
            world.end_phases()
        assert end_of(world) == wanted, f"seed {seed}"
        assert_each_phase_once(world)
    assert conflicts > len(here)  # shows that the calls of the two operators interleaved
    print(f"\n{len(here)} trials with two operators at once, {conflicts} conflicting writes")
