"""A trial's undisturbed course, point by point, to be left at any of them by an operator that dies or meets a fault there."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self, cast

from multistep.api.trial import KIND
from multistep.cluster.edge import Cluster, Object
from multistep.errors import Conflict
from tests.support.fake_cluster import FakeCluster
from tests.support.fake_volume import FakeVolume
from tests.support.world import KEY, World, timeless


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
        "starts": [dict(runner.starts) for runner in world.cluster.runners.values() if runner.starts],
        "pods": world.pods,
        "records": list(kept.records),
        "pointers": kept.pointers,
        "log": sorted(kept.log),
        "places": sorted(world.volume.results) if isinstance(world.volume, FakeVolume) else [],
    }


def assert_each_phase_once(world: World) -> None:
    """In each pod: an attempt has one of its own."""
    starts = [count for runner in world.cluster.runners.values() for count in runner.starts.values()]
    assert set(starts) <= {1}, {id: n for runner in world.cluster.runners.values() for id, n in runner.starts.items() if n > 1}


@dataclass
class Wrapped:
    """A cluster with something in the way."""

    cluster: FakeCluster

    def __getattr__(self, name: str) -> Any:
        return getattr(self.cluster, name)


@dataclass
class Past(Wrapped):
    """An API server that tells how things were, for some reads, or until a write was refused or a minute is over."""

    objects: Mapping[Any, Object]
    now: Callable[[], float]
    reads: int = 6

    def __post_init__(self) -> None:
        self.until = self.now() + 60.0

    async def get_trial(self, namespace: str, name: str) -> Object:
        return await self._past(self.cluster.get_trial, namespace, name)

    async def get_pod(self, namespace: str, name: str) -> Object:
        return await self._past(self.cluster.get_pod, namespace, name)

    async def apply_status(self, namespace: str, name: str, **options: Any) -> Object:
        try:
            return await self.cluster.apply_status(namespace, name, **options)
        except Conflict:
            self.reads = 0
            raise

    async def _past(self, get: Callable[[str, str], Any], namespace: str, name: str) -> Object:
        if self.reads <= 0 or self.now() > self.until:
            return cast(Object, await get(namespace, name))
        self.reads -= 1
        now, self.cluster.objects = self.cluster.objects, dict(self.objects)
        try:
            return cast(Object, await get(namespace, name))
        finally:
            self.cluster.objects = now


@dataclass
class Course:
    """options: of the world. states: the world at each point, without the operator; looks: the same as each look began,
    after how many points."""

    options: Mapping[str, Any]
    states: list[bytes] = field(default_factory=list)
    looks: list[tuple[int, bytes, bytes]] = field(default_factory=list)

    async def record(self) -> Self:
        """Let the trial run to its end."""
        self.world = world = World(**self.options)
        world.faults.at_point = lambda: self.states.append(world.save())
        world.at_look = lambda: self.looks.append((len(self.states), world.save(), pickle.dumps(world.reconciler.hints)))
        await world.run()
        self.trace = world.faults.trace
        self.end = end_of(world)
        self._versions: list[tuple[str, dict[Any, Object]]] = []  # of the trial, as they came
        self._version_at: list[int] = []
        for state in self.states:
            objects = World(**self.options).restore(state).cluster.objects
            version = objects[KIND, *KEY]["metadata"]["resourceVersion"]
            if not self._versions or self._versions[-1][0] != version:
                self._versions.append((version, objects))
            self._version_at.append(len(self._versions) - 1)
        return self

    def after_death(self, at: int, **options: Any) -> World:
        """The operator died at a point (from 0), and all that it had in mind is gone."""
        return World(**{**self.options, "plans": self.world.plans, **options}).restore(self.states[at])

    def alive(self, at: int, what: BaseException | Callable[[World], None]) -> World:
        """An operator that lives on when something happens at a point (from 0); it looks next at what it looked at then."""
        start, saved, hints = next(each for each in reversed(self.looks) if each[0] <= at)
        world = World(**self.options, plans=self.world.plans).restore(saved)
        world.reconciler.hints._by_trial.update(pickle.loads(hints)._by_trial)
        world.faults.fail(at - start + 1, what if isinstance(what, BaseException) else lambda: what(world))
        return world

    def in_the_past(self, at: int, back: Callable[[int], int]) -> World | None:
        """As after_death, but what the new operator reads first is an earlier version of everything. back: which, of how many.

        None if there was no earlier one.
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
