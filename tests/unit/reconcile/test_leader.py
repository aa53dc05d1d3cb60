"""The leading replica is suspended before one of its calls (each test run tries another call), and a second replica takes over.

The first replica resumes while the second one works on the trial, or after the trial has finished.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from multistep.errors import NotLeading
from multistep.kube.lease import Lease, Replica
from multistep.reconcile.reconciler import Reconciler
from tests.support.course import assert_each_phase_once, end_of
from tests.support.fake_cluster import FakeCluster
from tests.support.fenced import READS, Fenced
from tests.support.reading import reads_here
from tests.support.world import KEY, World
from tests.unit.reconcile.test_crashes import APART, LONG, undisturbed

SECONDS = 15.0
STARTS_NOTHING = {"receive", "send_eof", "close", "spool", "collected", "records", "uri"}


class Nap:
    """The suspension of a process before its at-th call (from 1); the process resumes when ``wake`` is set."""

    def __init__(self, at: int) -> None:
        self._at = at
        self.calls = 0
        self.asleep, self.wake = asyncio.Event(), asyncio.Event()

    async def call(self, _: str) -> None:
        self.calls += 1
        if self.calls == self._at:
            self.asleep.set()
            await self.wake.wait()


class Wrapped:
    """A cluster, a stream or a volume with a hook before each of its calls."""

    def __init__(self, inner: Any, before: Callable[[str], Any]) -> None:
        self._inner = inner
        self._before = before

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not inspect.iscoroutinefunction(found):
            return found

        async def call(*args: Any, **options: Any) -> Any:
            if inspect.isawaitable(waiting := self._before(name)):
                await waiting
            result = await found(*args, **options)
            return Wrapped(result, self._before) if name == "open_exec" else result

        return call


class Sleeper:
    """Two replicas of the operator; the first one leads, is suspended, and resumes when the second one leads.

    on_the_wire: whether the first replica is suspended after it sent a request, which arrives when the replica resumes.
    """

    def __init__(self, options: Mapping[str, Any], at: int, *, on_the_wire: bool = False) -> None:
        self.world = World(**options)
        self.passed = 0.0
        self.nap = Nap(at)
        self.did: list[str] = []  # calls of the first replica after it resumed
        leases = FakeCluster()
        self.first, self.second = (self._lease(leases, name) for name in ("first", "second"))
        cluster, volume = self.world.cluster, self.world.volume
        if on_the_wire:
            fenced: Any = Fenced(Wrapped(cluster, self.nap.call), self.first.check)
            stored: Any = Wrapped(Wrapped(volume, self.nap.call), self._check_writes)
        else:
            fenced = Wrapped(Fenced(Wrapped(cluster, self._note), self.first.check), self.nap.call)
            stored = Wrapped(Wrapped(Wrapped(volume, self._note), self._check_writes), self.nap.call)
        world = self.world
        settings = world.reconciler.settings
        self.old = Reconciler(fenced, stored, settings, world.metrics, clock=lambda: world.now)
        reads_here(self.old)

    def _lease(self, cluster: FakeCluster, name: str) -> Lease:
        clock = lambda: self.passed  # noqa: E731
        return Lease(cluster, Replica(name), namespace="ns", name="lease", seconds=SECONDS, clock=clock)

    def _note(self, name: str) -> None:
        if self.nap.wake.is_set():
            self.did.append(name)

    def _check_writes(self, name: str) -> None:
        if name not in STARTS_NOTHING:
            self.first.check()

    async def fall_asleep(self) -> asyncio.Task[None]:
        """Run the first replica until it is suspended; then let the second acquire the lease."""
        await self.first.attempt()
        await self.second.attempt()
        self.world.reconciler, new = self.old, self.world.reconciler
        running = asyncio.create_task(self.world.run(until=self.nap.wake.is_set))
        napping = asyncio.create_task(self.nap.asleep.wait())
        await asyncio.wait([running, napping], return_when=asyncio.FIRST_COMPLETED)
        assert napping.done(), "it was not asleep at all"
        self.world.reconciler = new
        self.passed += SECONDS + 1
        await self.second.attempt()
        assert (self.first.held, self.second.held) == (False, True)
        return running

    async def run(self, reconciles: int) -> None:
        """Suspend and resume the first replica, and run the trial to its end.

        reconciles: number of reconciles of the second replica while the first one is suspended.
        """
        running = await self.fall_asleep()
        woken = self.world.reconciles + reconciles
        await self.world.run(until=lambda: self.world.reconciles >= woken)
        self.nap.wake.set()
        await running
        await self.world.run()


# Options of the world, the argument `reconciles` of ``Sleeper.run``, and n: the test suspends the replica before every n-th call.
STORIES = [(LONG, 1, 2), (LONG, 4, 5), (LONG, 1000, 5), (APART, 1, 7), (APART, 1000, 13)]


@pytest.mark.parametrize(
    ("options", "reconciles", "step"),
    STORIES,
    ids=["wakes soon", "wakes later", "wakes after the end", "verified apart, wakes soon", "verified apart, wakes after the end"],
)
async def test_a_replica_that_wakes_past_its_lease_does_nothing(options: Mapping[str, Any], reconciles: int, step: int) -> None:
    wanted, points = end_of(await undisturbed(options)), await calls_of(options)
    for at in range(1, points + 1, step):
        story = Sleeper(options, at)
        await story.run(reconciles)
        assert end_of(story.world) == wanted, f"asleep before call {at}"
        assert_each_phase_once(story.world)
        started = [name for name in story.did if name not in STARTS_NOTHING | READS]
        assert started == [], f"asleep before call {at}"
        assert all(isinstance(each, NotLeading) for each in story.world.errors)
    print(f"\nasleep before each {step}. of {points} calls")


@pytest.mark.parametrize(
    ("options", "reconciles", "step"),
    STORIES,
    ids=["arrives soon", "arrives later", "arrives after the end", "verified apart, soon", "verified apart, after the end"],
)
async def test_a_request_that_arrives_after_the_lease_was_lost_changes_nothing(
    options: Mapping[str, Any], reconciles: int, step: int
) -> None:
    """The lease check cannot stop a sent request: resource versions, uids, names and operation ids make it harmless.

    A pod that such a request creates stays idle, and is deleted as an orphan.
    """
    wanted, points = without_idle_pods(await undisturbed(options)), await calls_of(options)
    for at in range(1, points + 1, step):
        story = Sleeper(options, at, on_the_wire=True)
        await story.run(reconciles)
        assert without_idle_pods(story.world) == wanted, f"late: call {at}"
        assert_each_phase_once(story.world)
    print(f"\nlate: each {step}. of {points} calls")


def without_idle_pods(world: World) -> dict[str, Any]:
    """Return a trial's end as ``end_of`` does, without the pods in which no phase was started."""
    end = end_of(world)
    idle = {uid for uid, runner in world.cluster.runners.items() if not runner.starts}
    pods = [name for name in end["pods"] if world.cluster.objects["Pod", KEY[0], name]["metadata"]["uid"] not in idle]
    return {**end, "pods": pods, "starts": [starts for starts in end["starts"] if starts]}


async def calls_of(options: Mapping[str, Any]) -> int:
    story = Sleeper(options, 10**9)
    await story.first.attempt()
    story.world.reconciler = story.old
    await story.world.run()
    assert story.world.errors == [] and story.world.condition[0] == "Complete"
    assert story.world.object["metadata"]["name"] == KEY[1]
    return story.nap.calls
