"""Record a trial's undisturbed run, so that tests can crash the operator or inject a fault at any of its fault points."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self, cast

from multistep.api.trial.trial import KIND
from multistep.errors import Conflict
from multistep.kube.cluster_protocols import Cluster, Object
from multistep.kube.resources import PODS, TRIALS, Resource
from multistep.store.history import Place
from tests.support.fake_volume import FakeVolume
from tests.support.world import KEY, World, timeless
from tests.support.wrapped_cluster import Wrapped


def end_of(world: World) -> dict[str, Any]:
    """Return the part of the final state that must be the same whatever happens to the operator during the trial."""
    kept = world.kept
    return {
        "status": timeless(world.object["status"]),
        "result.json": timeless(json.loads(kept.files["result.json"])),
        "files": sorted(kept.files),
        "directories": kept.directories,
        "steps": kept.steps,
        "earlier": kept.earlier,
        "tokens": kept.tokens,
        "starts": [dict(runner.starts) for runner in world.cluster.runners.values() if runner.starts],
        "pods": world.pods,
        "records": list(kept.records),
        "pointers": kept.pointers,
        "log": sorted(kept.log),
        "checkpoints": {id: (commit.files, commit.base and commit.base.id) for id, (commit, _) in kept.checkpoints.items()},
        "history": _rows(world.volume.history.lines) if isinstance(world.volume, FakeVolume) else {},
        "places": sorted(world.volume.results) if isinstance(world.volume, FakeVolume) else [],
    }


def _rows(lines: Mapping[str, tuple[Place, bytes]]) -> dict[str, Any]:
    """Return the history's rows by trial uid, with their places."""
    times = {"started": "", "finished": ""}
    return {uid: (place, timeless(json.loads(line) | times)) for uid, (place, line) in lines.items()}


def assert_each_phase_once(world: World) -> None:
    """Check that no pod's runner started a phase twice. Each attempt has its own pod."""
    starts = [count for runner in world.cluster.runners.values() for count in runner.starts.values()]
    assert set(starts) <= {1}, {id: n for runner in world.cluster.runners.values() for id, n in runner.starts.items() if n > 1}


@dataclass
class Past(Wrapped):
    """An API server that returns stale objects for some reads, until it rejects a write or a minute has passed."""

    objects: Mapping[Any, Object]
    now: Callable[[], float]
    reads: int = 6

    def __post_init__(self) -> None:
        self.until = self.now() + 60.0

    async def get(self, resource: Resource, namespace: str, name: str) -> Object:
        if resource not in (TRIALS, PODS) or self.reads <= 0 or self.now() > self.until:
            return await self.cluster.get(resource, namespace, name)
        self.reads -= 1
        now, self.cluster.objects = self.cluster.objects, dict(self.objects)
        try:
            return await self.cluster.get(resource, namespace, name)
        finally:
            self.cluster.objects = now

    async def apply_status(self, resource: Resource, namespace: str, name: str, **options: Any) -> Object:
        try:
            return await self.cluster.apply_status(resource, namespace, name, **options)
        except Conflict:
            self.reads = 0
            raise


@dataclass
class RecordedRun:
    """A recorded run of a trial.

    options: arguments of World.
    states: World.save() at each fault point, i.e. wherever the tests let the operator die or a request fail.
    reconciles: for each reconcile, the number of fault points before it, and World.save() and the PodHints at its start.
    """

    options: Mapping[str, Any]
    states: list[bytes] = field(default_factory=list)
    reconciles: list[tuple[int, bytes, bytes]] = field(default_factory=list)

    async def record(self) -> Self:
        """Run the trial until it is finished, and record the run."""
        self.world = world = World(**self.options)
        world.faults.at_point = lambda: self.states.append(world.save())
        world.at_reconcile = lambda: self.reconciles.append(
            (len(self.states), world.save(), pickle.dumps(world.reconciler.memory.hints))
        )
        await world.run()
        self.trace = world.faults.trace
        self.end = end_of(world)
        self._versions: list[tuple[str, dict[Any, Object]]] = []  # (trial's resourceVersion, all objects) in order
        self._version_at: list[int] = []
        for state in self.states:
            objects = World(**self.options, counters=world.metrics).restore(state).cluster.objects
            version = objects[KIND, *KEY]["metadata"]["resourceVersion"]
            if not self._versions or self._versions[-1][0] != version:
                self._versions.append((version, objects))
            self._version_at.append(len(self._versions) - 1)
        return self

    def after_death(self, at: int, **options: Any) -> World:
        """Return the world after the operator died at fault point `at` (from 0), with a new operator whose memory is empty."""
        shared = {"plans": self.world.plans, "counters": self.world.metrics}
        return World(**{**self.options, **shared, **options}).restore(self.states[at])

    def with_fault(self, at: int, what: BaseException | Callable[[World], None]) -> World:
        """Return the world before the reconcile that reaches fault point `at` (from 0); that point then raises or calls `what`."""
        start, saved, hints = next(each for each in reversed(self.reconciles) if each[0] <= at)
        world = World(**self.options, plans=self.world.plans, counters=self.world.metrics).restore(saved)
        world.reconciler.memory.hints._by_trial.update(pickle.loads(hints)._by_trial)
        world.faults.fail(at - start + 1, what if isinstance(what, BaseException) else lambda: what(world))
        return world

    def after_death_with_stale_reads(self, at: int, back: Callable[[int], int]) -> World | None:
        """Return the world as after_death does, but the new operator's first reads return stale objects.

        back: function from the current version's number to the stale version's number. Return None if that version does not exist.
        """
        now = self._version_at[at]
        then = back(now)
        if not 0 <= then < now:
            return None
        world = self.after_death(at)
        world.wrap = lambda cluster: cast(Cluster, Past(cluster, self._versions[then][1], lambda: world.now))
        world.reconciler = world.fresh()
        return world

    def assert_same_end(self, world: World, why: str) -> None:
        end = end_of(world)
        assert end == self.end, f"{why}: {[(name, end[name], self.end[name]) for name in end if end[name] != self.end[name]]}"
        assert_each_phase_once(world)
        assert world.status_writes <= self.world.status_writes + 2, why
