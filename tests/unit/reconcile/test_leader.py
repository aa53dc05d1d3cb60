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
from multistep.reconcile.trial.reconciler import Reconciler
from tests.support.fake_cluster import FakeCluster
from tests.support.fake_volume import FakeVolume
from tests.support.fenced import READS, Fenced
from tests.support.in_part import in_part_or_whole, tried
from tests.support.reading import reads_here
from tests.support.recorded_run import assert_each_phase_once, end_of
from tests.support.world import KEY, World
from tests.unit.reconcile.test_crashes import APART, LONG, undisturbed

SECONDS = 15.0
STARTS_NOTHING = {"receive", "send_eof", "close", "spool", "collected", "records", "uri"}


class Suspension:
    """The suspension of a process before its at-th call (from 1); the process resumes when ``resumed`` is set."""

    def __init__(self, at: int) -> None:
        self._at = at
        self.calls = 0
        self.suspended, self.resumed = asyncio.Event(), asyncio.Event()

    async def call(self, _: str) -> None:
        self.calls += 1
        if self.calls == self._at:
            self.suspended.set()
            await self.resumed.wait()


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


class Replicas:
    """Two replicas of the operator; the first one leads, is suspended, and resumes when the second one leads.

    request_in_flight: whether the first replica is suspended after it sent a request, which arrives when the replica resumes.
    """

    def __init__(self, options: Mapping[str, Any], at: int, *, request_in_flight: bool = False) -> None:
        self.world = World(**options)
        self.passed = 0.0
        self.suspension = Suspension(at)
        self.calls_when_resumed: list[str] = []  # calls of the first replica after it resumed
        leases = FakeCluster()
        self.first, self.second = (self._lease(leases, name) for name in ("first", "second"))
        cluster, volume = self.world.cluster, self.world.volume
        if request_in_flight:
            fenced: Any = Fenced(Wrapped(cluster, self.suspension.call), self.first.check)
            store: Callable[[Any], Any] = lambda each: Wrapped(Wrapped(each, self.suspension.call), self._check_writes)  # noqa: E731
        else:
            fenced = Wrapped(Fenced(Wrapped(cluster, self._record), self.first.check), self.suspension.call)
            store = lambda each: Wrapped(  # noqa: E731
                Wrapped(Wrapped(each, self._record), self._check_writes), self.suspension.call
            )
        world = self.world
        settings = world.reconciler.settings
        assert isinstance(volume, FakeVolume)
        history = store(volume.history)
        self.old = Reconciler(fenced, store(volume), settings, world.metrics, clock=lambda: world.now, history=history)
        reads_here(self.old)

    def _lease(self, cluster: FakeCluster, name: str) -> Lease:
        clock = lambda: self.passed  # noqa: E731
        return Lease(cluster, Replica(name), namespace="ns", name="lease", seconds=SECONDS, clock=clock)

    def _record(self, name: str) -> None:
        if self.suspension.resumed.is_set():
            self.calls_when_resumed.append(name)

    def _check_writes(self, name: str) -> None:
        if name not in STARTS_NOTHING:
            self.first.check()

    async def suspend_first(self) -> asyncio.Task[None]:
        """Run the first replica until it is suspended; then let the second acquire the lease."""
        await self.first.attempt()
        await self.second.attempt()
        self.world.reconciler, new = self.old, self.world.reconciler
        running = asyncio.create_task(self.world.run(until=self.suspension.resumed.is_set))
        suspended = asyncio.create_task(self.suspension.suspended.wait())
        await asyncio.wait([running, suspended], return_when=asyncio.FIRST_COMPLETED)
        assert suspended.done(), "it was not suspended"
        self.world.reconciler = new
        self.passed += SECONDS + 1
        await self.second.attempt()
        assert (self.first.held, self.second.held) == (False, True)
        return running

    async def run(self, reconciles: int) -> None:
        """Suspend and resume the first replica, and run the trial to its end.

        reconciles: number of reconciles of the second replica while the first one is suspended.
        """
        running = await self.suspend_first()
        woken = self.world.reconciles + reconciles
        await self.world.run(until=lambda: self.world.reconciles >= woken)
        self.suspension.resumed.set()
        await running
        await self.world.run()


# Options of the world, the argument `reconciles` of ``Replicas.run``, and n: every n-th call is tried as the point of suspension,
# and in the short form every sixth of these.
CASES = [(LONG, 1, 2), (LONG, 4, 5), (LONG, 1000, 5), (APART, 1, 7), (APART, 1000, 13)]


@in_part_or_whole
@pytest.mark.parametrize(
    ("options", "reconciles", "step"),
    CASES,
    ids=["wakes soon", "wakes later", "wakes after the end", "verified apart, wakes soon", "verified apart, wakes after the end"],
)
async def test_a_replica_that_wakes_past_its_lease_does_nothing(
    options: Mapping[str, Any], reconciles: int, step: int, whole: bool
) -> None:
    wanted, points = end_of(await undisturbed(options)), await calls_of(options)
    for at in tried(range(1, points + 1, step), whole, every=19, first=reconciles):
        replicas = Replicas(options, at)
        await replicas.run(reconciles)
        assert end_of(replicas.world) == wanted, f"suspended before call {at}"
        assert_each_phase_once(replicas.world)
        started = [name for name in replicas.calls_when_resumed if name not in STARTS_NOTHING | READS]
        assert started == [], f"suspended before call {at}"
        assert all(isinstance(each, NotLeading) for each in replicas.world.errors)
    print(f"\nsuspended before each {step}. of {points} calls")


@in_part_or_whole
@pytest.mark.parametrize(
    ("options", "reconciles", "step"),
    CASES,
    ids=["arrives soon", "arrives later", "arrives after the end", "verified apart, soon", "verified apart, after the end"],
)
async def test_a_request_that_arrives_after_the_lease_was_lost_changes_nothing(
    options: Mapping[str, Any], reconciles: int, step: int, whole: bool
) -> None:
    """The lease check cannot stop a sent request: resource versions, uids, names and operation ids make it harmless.

    A pod that such a request creates stays idle, and is deleted as an orphan.
    """
    wanted, points = without_idle_pods(await undisturbed(options)), await calls_of(options)
    for at in tried(range(1, points + 1, step), whole, every=19, first=reconciles):
        replicas = Replicas(options, at, request_in_flight=True)
        await replicas.run(reconciles)
        assert without_idle_pods(replicas.world) == wanted, f"late: call {at}"
        assert_each_phase_once(replicas.world)
    print(f"\nlate: each {step}. of {points} calls")


def without_idle_pods(world: World) -> dict[str, Any]:
    """Return a trial's end as ``end_of`` does, without the pods in which no phase was started."""
    end = end_of(world)
    idle = {uid for uid, runner in world.cluster.runners.items() if not runner.starts}
    pods = [name for name in end["pods"] if world.cluster.objects["Pod", KEY[0], name]["metadata"]["uid"] not in idle]
    return {**end, "pods": pods, "starts": [starts for starts in end["starts"] if starts]}


async def calls_of(options: Mapping[str, Any]) -> int:
    replicas = Replicas(options, 10**9)
    await replicas.first.attempt()
    replicas.world.reconciler = replicas.old
    await replicas.world.run()
    assert replicas.world.errors == [] and replicas.world.condition[0] == "Complete"
    assert replicas.world.object["metadata"]["name"] == KEY[1]
    return replicas.suspension.calls
