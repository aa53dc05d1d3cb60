"""Bounds on what is asked of the cluster at once, fair between namespaces.

Who finds no place free waits in a line, without a worker or a connection, and is woken when its turn has come. A look
gives back at its end what it did not use, so nothing is lost with one that fails. This is about load alone: a count that
is wrong for a while makes nothing wrong.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from ..engine.decisions import PodFacts
from ..engine.lifecycle import stands_still
from .turns import Key, Turns

Wake = Callable[[Key], None]

STARTING_SECONDS = 60.0  # who has not started by then waits for something that others need not wait for, too


@dataclass(frozen=True)
class _Held:
    """places: how many; shared: whether they count for all, or for the key's own namespace only."""

    places: int
    shared: bool = True


@dataclass(frozen=True)
class _Wanted:
    """places: how many; since: time of the event loop."""

    places: int
    since: float


class Bound:
    """At most limit places are held. Of the namespaces that wait, the one that holds the fewest is served first.

    wake: called for a key whose turn has come; it has its places then. most_each: the most that one namespace may hold; unset: all.
    """

    def __init__(self, limit: int, wake: Wake, *, most_each: int | None = None) -> None:
        self.limit = limit
        self._most_each = max(1, limit if most_each is None else most_each)
        self._wake = wake
        self._held: dict[Key, _Held] = {}
        self._shared = 0
        self._by_namespace: Counter[str] = Counter()
        self._wanted: dict[Key, _Wanted] = {}
        self._lines = (Turns(), Turns())

    @property
    def held(self) -> int:
        """Places that count for all."""
        return self._shared

    @property
    def waiting(self) -> int:
        """Keys in the line."""
        return len(self._wanted)

    def ask(self, key: Key, places: int = 1, *, first: bool = False) -> bool:
        """Whether the key has its places; else it is in the line. first: before all who do not say so.

        Who is told no must await nothing before its look is over, as that gives back what came meanwhile.
        """
        if key not in self._held and key not in self._wanted:
            self._wanted[key] = _Wanted(min(places, self.limit), _now())
            self._lines[not first].add(key)
            self._serve(asking=key)
        return key in self._held

    def waited(self, key: Key) -> float:
        """Seconds for which a key has been in the line."""
        wanted = self._wanted.get(key)
        return _now() - wanted.since if wanted else 0.0

    def hold(self, key: Key, *, shared: bool) -> None:
        """Count a place as held, whatever the limit says."""
        self._change(key, _Held(1, shared))
        self._serve()

    def free(self, key: Key) -> None:
        """Give back what the key holds, if anything. In the line it stays."""
        self._change(key, None)
        self._serve()

    def _change(self, key: Key, held: _Held | None) -> None:
        for each, sign in ((self._held.pop(key, None), -1), (held, 1)):
            if each is not None:
                self._by_namespace[key[0]] += sign * each.places
                self._shared += sign * each.places * each.shared
        if held is not None:
            self._held[key] = held
        if not self._by_namespace[key[0]]:
            del self._by_namespace[key[0]]

    def _serve(self, *, asking: Key | None = None) -> None:
        """Give places to those whose turn it is, while there are any."""
        while (key := self._next()) is not None:
            self._change(key, _Held(self._wanted.pop(key).places))
            if key != asking:
                self._wake(key)

    def _next(self) -> Key | None:
        for line in self._lines:
            may = [each for each in line.namespaces if self._by_namespace[each] < self._most_each]
            if not may:
                continue
            namespace = min(may, key=self._by_namespace.__getitem__)
            if self._shared + self._wanted[line.first(namespace)].places > self.limit:
                return None  # nobody who wants less goes before
            return line.take(namespace)
        return None


class PodStarts(Bound):
    """The bound on pods that are starting: asked for, but not running yet. Counted by trial, which starts one at a time.

    One that stands still (no node has room for it, its image does not come) keeps a place of its own namespace only, and
    none holds a place for longer than STARTING_SECONDS, so that impossible pods slow their namespace down and stop nobody.
    clock: seconds since the epoch.
    """

    def __init__(self, limit: int, wake: Wake, clock: Callable[[], float]) -> None:
        super().__init__(limit, wake)
        self._clock = clock
        self._pods: dict[Key, tuple[str, float]] = {}  # name, and since when it has been starting

    def saw(self, key: Key, pod: PodFacts, *, gone: bool = False) -> None:
        """A trial's pod is, as the cluster shows it. gone: it was."""
        since = pod.scheduled_at or pod.created_at
        left = min(STARTING_SECONDS, since + STARTING_SECONDS - self._clock())
        over = gone or pod.running or pod.terminated or pod.deleting or pod.phase != "Pending"
        if over or pod.gates or left <= 0:  # a gated one has not begun to start, and no node or registry works for it
            self._started(key, pod.name)
            return
        if self._pods.get(key) != (pod.name, since):
            self._pods[key] = pod.name, since
            asyncio.get_running_loop().call_later(left, self._too_long, key, pod.name, since)
        self.hold(key, shared=not stands_still(pod))

    def settle(self, key: Key) -> None:
        """A look is over: what it did not make a pod with is free again."""
        if key not in self._pods:
            self.free(key)

    def _started(self, key: Key, name: str) -> None:
        """Only if it is the pod that counts: the news may be of an earlier one."""
        if key in self._pods and self._pods[key][0] == name:
            del self._pods[key]
            self.free(key)

    def _too_long(self, key: Key, name: str, since: float) -> None:
        if self._pods.get(key) == (name, since):
            self._started(key, name)


def _now() -> float:
    return asyncio.get_running_loop().time()
