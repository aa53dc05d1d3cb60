"""Kill the operator at every point where it touches the world, begin anew with an empty memory, and compare the ends.

The fakes pass a point before each call to API server and store, after each write (it happened, but nobody was told),
before each frame that is sent (it was lost) and before each one that is received (its answer was lost).
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from multistep.cluster.edge import Cluster, ExecStream, Object
from multistep.errors import NotFound, StoreError, StreamLost, Unavailable
from tests.support.fake_cluster import FakeCluster
from tests.support.faults import Faults, Killed
from tests.support.world import KEY, MIXED, SEPARATE, World, manifest, timeless

SHORT: Mapping[str, Any] = {}
LONG: Mapping[str, Any] = {
    "durations": {"/healthcheck": 3.0, "a/agent": 100.0, "b/healthcheck": 9.0, "b/verifier": 40.0, "c/agent": 200.0}
}
AS_ROOT: Mapping[str, Any] = {"user": 1000}
# Verified in pods of their own: all steps; one step, in an image that is made again as root.
APART: Mapping[str, Any] = {"trial": manifest(config=SEPARATE), "durations": {"a/verifier/verifier": 40.0, "b/agent": 9.0}}
MIXED_AS_ROOT: Mapping[str, Any] = {"trial": manifest(config=MIXED), "user": 1000}


def end_of(world: World) -> dict[str, Any]:
    """What has to be the same however a trial came to its end."""
    kept = world.kept
    return {
        "status": timeless(world.object["status"]),
        "result.json": timeless(json.loads(kept.files["result.json"])),
        "files": sorted(kept.files),
        "directories": kept.directories,
        "steps": kept.steps,
        "earlier": kept.earlier,
        "starts": [dict(runner.starts) for runner in world.cluster.runners.values()],
        "pods": world.pods,
        "records": list(kept.records),
    }


async def undisturbed(options: Mapping[str, Any]) -> World:
    world = World(**options)
    await world.run()
    assert world.condition[0] == "Complete"
    assert world.errors == []
    return world


def assert_each_phase_once(world: World) -> None:
    starts = [count for runner in world.cluster.runners.values() for count in runner.starts.values()]
    assert set(starts) == {1}, {id: n for runner in world.cluster.runners.values() for id, n in runner.starts.items() if n > 1}


def killed(_: str) -> BaseException:
    return Killed()


def failing(point: str) -> Exception:
    """What the operator is told when the point fails, and it lives on."""
    if point.startswith(("send", "receive")):
        return StreamLost("the stream was cut")
    return StoreError("no space left") if point.startswith("volume") else Unavailable("no answer")


@pytest.mark.parametrize(
    ("options", "fault", "least"),
    [
        (SHORT, killed, 200),
        (SHORT, failing, 200),
        (LONG, killed, 250),
        (AS_ROOT, killed, 200),
        (APART, killed, 300),
        (APART, failing, 300),
        (MIXED_AS_ROOT, killed, 200),
    ],
    ids=[
        "killed",
        "failing",
        "killed, long phases",
        "killed, pod made again as root",
        "killed, verified apart",
        "failing, verified apart",
        "killed, one verified apart as root",
    ],
)
async def test_whenever_the_operator_dies_or_a_call_fails_the_trial_ends_the_same(
    options: Mapping[str, Any], fault: Callable[[str], BaseException], least: int
) -> None:
    calm = await undisturbed(options)
    wanted, points = end_of(calm), calm.faults.trace
    assert len(points) > least
    last = len(points) if options is not AS_ROOT else next(i for i, each in enumerate(points, 1) if "//prepare" in each) + 1
    for at in range(1, last + 1):
        world = World(**options, faults=Faults().fail(at, fault(points[at - 1])))
        await world.run()
        assert end_of(world) == wanted, f"after {fault.__name__} at point {at}: {points[at - 1]}"
        assert_each_phase_once(world)
        assert world.status_writes <= calm.status_writes + 2
    writes = sum(each.endswith((" before", " after")) for each in points[:last])
    frames = sum(each.startswith(("send", "receive")) for each in points[:last])
    print(
        f"\n{fault.__name__} at each of {last} points: {writes} before or after a write, {frames} frames, the others before a read"
    )


async def test_dying_again_and_again_is_no_worse() -> None:
    """At points chosen by chance, but the same each time."""
    calm = await undisturbed(LONG)
    wanted, points = end_of(calm), len(calm.faults.trace)
    chance = random.Random(1)
    trials = 60
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
class Wrapped:
    """A cluster with something in the way."""

    cluster: FakeCluster

    def __getattr__(self, name: str) -> Any:
        return getattr(self.cluster, name)


@dataclass
class Stale(Wrapped):
    """The at-th read of the trial (from 1) tells how it was some versions ago."""

    at: int
    back: int
    history: list[Object] = field(default_factory=list)

    async def get_trial(self, namespace: str, name: str) -> Object:
        self.at -= 1
        return (
            self.history[max(0, len(self.history) - 1 - self.back)]
            if self.at == 0
            else await self.cluster.get_trial(namespace, name)
        )

    async def apply_status(self, namespace: str, name: str, **options: Any) -> Object:
        self.history = self.history or [await self.cluster.get_trial(namespace, name)]
        self.history.append(await self.cluster.apply_status(namespace, name, **options))
        return self.history[-1]


async def test_a_stale_read_of_the_trial_is_found_out_by_its_first_write() -> None:
    calm = await undisturbed(LONG)
    wanted = end_of(calm)
    reads = [each for each in calm.faults.trace if each.startswith("get MultiStepTrial")]
    tried = 0
    for at in range(2, len(reads) + 1):
        for back in (1, 2, 3, 5, 8):
            stale: list[Cluster] = []

            def wrap(cluster: FakeCluster, at: int = at, back: int = back, stale: list[Cluster] = stale) -> Cluster:
                stale.append(cast(Cluster, stale[0] if stale else Stale(cluster, at, back)))
                return stale[0]

            world = World(**LONG, wrap=wrap)
            await world.run()
            assert end_of(world) == wanted, f"read {at}, {back} versions back"
            assert_each_phase_once(world)
            tried += 1
    print(f"\n{tried} stale reads")


@dataclass
class Late(Wrapped):
    """The pod's readiness comes some reads late, as the kubelet tells it when it can."""

    reads: int
    told: list[Object] = field(default_factory=list)

    async def get_pod(self, namespace: str, name: str) -> Object:
        pod = await self.cluster.get_pod(namespace, name)
        self.told.append(pod["status"]["conditions"][0])
        late = self.told[max(0, len(self.told) - 1 - self.reads)]
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
    """The pod goes between the look at it and the exec, and the news of it are lost."""

    gone: bool = False

    async def open_exec(self, namespace: str, pod: str, *rest: Any) -> ExecStream:
        if not self.gone:
            self.gone = True
            self.cluster.remove("Pod", namespace, pod)
        return await self.cluster.open_exec(namespace, pod, *rest)


async def test_a_pod_that_goes_between_look_and_exec_is_looked_for_again() -> None:
    world = World(wrap=lambda cluster: cast(Cluster, Vanishing(cluster)))
    await world.run()
    assert world.condition[0] == "Complete"
    assert [each.reason for each in world.status.attempts] == ["PodDeleted"]


@dataclass
class Jittery(Wrapped):
    """Every call takes its time, so that two operators get between each other's calls."""

    chance: random.Random

    def __getattr__(self, name: str) -> Any:
        call = getattr(self.cluster, name)

        async def later(*args: Any, **options: Any) -> Any:
            for _ in range(self.chance.randint(0, 30)):
                await asyncio.sleep(0)
            try:
                return await call(*args, **options)
            finally:
                for _ in range(self.chance.randint(0, 30)):
                    await asyncio.sleep(0)

        return later


@pytest.mark.parametrize(("options", "seeds"), [(LONG, range(60)), (APART, range(20))], ids=["long phases", "verified apart"])
async def test_two_operators_at_once_start_each_phase_once(options: Mapping[str, Any], seeds: range) -> None:
    """A Lease is no fence: the old one may still be at it."""
    wanted = end_of(await undisturbed(options))
    conflicts = 0
    for seed in seeds:
        chance = random.Random(seed)
        world = World(**options, wrap=lambda cluster, chance=chance: cast(Cluster, Jittery(cluster, chance)))  # type: ignore[misc]
        operators = [world.fresh(), world.fresh()]
        for _ in range(200):
            found = await asyncio.gather(*(each.reconcile(KEY) for each in operators), return_exceptions=True)
            unforeseen = [each for each in found if isinstance(each, BaseException) and not isinstance(each, StreamLost | NotFound)]
            assert not unforeseen, unforeseen
            conflicts += found.count(0.5)
            if found == [None, None]:
                break
            world.now += 1.0 if 0.5 in found else 10.0
            world.end_phases()
        assert end_of(world) == wanted, f"seed {seed}"
        assert_each_phase_once(world)
    assert conflicts > len(seeds)  # they did meet
    print(f"\n{len(seeds)} trials with two operators at once, {conflicts} conflicting writes")
