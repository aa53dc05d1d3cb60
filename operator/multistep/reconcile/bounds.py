"""Concurrency limits on requests to the cluster, fair between namespaces.

A key that gets no slot is queued, without a worker or a connection, and is requeued when it has its slot. The end of a
reconcile releases the slots that it did not use, also when it fails. The limits only bound load: a wrong count affects no result.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from multistep.engine.decisions import PodFacts
from multistep.engine.pod_start import is_stuck
from multistep.reconcile.turns import Key, Turns

Wake = Callable[[Key], None]

STARTING_SECONDS = 60.0  # a pod that takes longer waits for its own cause (image, node), which must not delay others


@dataclass(frozen=True)
class _Slots:
    """places: number of slots; shared: whether they count for the limit, or for the key's namespace only."""

    places: int
    shared: bool = True


@dataclass(frozen=True)
class _Request:
    """places: number of slots; since: time of the event loop."""

    places: int
    since: float


class Bound:
    """A concurrency limit. Of the queued namespaces, the one that holds the fewest slots is served first.

    wake: called for a queued key when it gets its slots. most_each: limit of one namespace; unset: the same limit.
    """

    def __init__(self, limit: int, wake: Wake, *, most_each: int | None = None) -> None:
        self.limit = limit
        self._most_each = max(1, limit if most_each is None else most_each)
        self._wake = wake
        self._held: dict[Key, _Slots] = {}
        self._shared = 0
        self._by_namespace: Counter[str] = Counter()
        self._wanted: dict[Key, _Request] = {}
        self._queues = (Turns(), Turns())

    @property
    def held(self) -> int:
        """Slots that count for the limit."""
        return self._shared

    @property
    def waiting(self) -> int:
        """Number of queued keys."""
        return len(self._wanted)

    def ask(self, key: Key, places: int = 1, *, first: bool = False) -> bool:
        """Return whether the key has its slots; if not, it is queued. first: queue before all keys without this flag.

        After False the caller must end its reconcile without another await: that end releases slots granted meanwhile.
        """
        if key not in self._held and key not in self._wanted:
            self._wanted[key] = _Request(min(places, self.limit), _now())
            self._queues[not first].add(key)
            self._serve(asking=key)
        return key in self._held

    def waited(self, key: Key) -> float:
        """Return the seconds for which a key has been queued."""
        wanted = self._wanted.get(key)
        return _now() - wanted.since if wanted else 0.0

    def hold(self, key: Key, *, shared: bool) -> None:
        """Count one slot as held, even beyond the limit."""
        self._change(key, _Slots(1, shared))
        self._serve()

    def free(self, key: Key) -> None:
        """Release the key's slots, if any. A queued key stays queued."""
        self._change(key, None)
        self._serve()

    def _change(self, key: Key, held: _Slots | None) -> None:
        for each, sign in ((self._held.pop(key, None), -1), (held, 1)):
            if each is not None:
                self._by_namespace[key[0]] += sign * each.places
                self._shared += sign * each.places * each.shared
        if held is not None:
            self._held[key] = held
        if not self._by_namespace[key[0]]:
            del self._by_namespace[key[0]]

    def _serve(self, *, asking: Key | None = None) -> None:
        """Give free slots to queued keys in turn."""
        while (key := self._next()) is not None:
            self._change(key, _Slots(self._wanted.pop(key).places))
            if key != asking:
                self._wake(key)

    def _next(self) -> Key | None:
        for queue in self._queues:
            eligible = [each for each in queue.namespaces if self._by_namespace[each] < self._most_each]
            if not eligible:
                continue
            namespace = min(eligible, key=self._by_namespace.__getitem__)
            if self._shared + self._wanted[queue.first(namespace)].places > self.limit:
                return None  # a later key that needs fewer slots must not overtake
            return queue.take(namespace)
        return None


class PodStarts(Bound):
    """The limit of starting pods: created, but not running yet. Counted by trial, as a trial starts one pod at a time.

    A stuck pod (unschedulable, image cannot be pulled) holds a slot of its namespace only, and no pod holds a slot for longer
    than STARTING_SECONDS: stuck pods slow down their own namespace, and block no other. clock: seconds since the epoch.
    """

    def __init__(self, limit: int, wake: Wake, clock: Callable[[], float]) -> None:
        super().__init__(limit, wake)
        self._clock = clock
        self._pods: dict[Key, tuple[str, float]] = {}  # name, and the epoch second at which it started to start

    def saw(self, key: Key, pod: PodFacts, *, gone: bool = False) -> None:
        """Update the slot from the trial's pod as the cluster reports it. gone: the pod was deleted."""
        since = pod.scheduled_at or pod.created_at
        left = min(STARTING_SECONDS, since + STARTING_SECONDS - self._clock())
        over = gone or pod.running or pod.terminated or pod.deleting or pod.phase != "Pending"
        if over or pod.gates or left <= 0:  # a gated pod loads no node and no registry
            self._started(key, pod.name)
            return
        if self._pods.get(key) != (pod.name, since):
            self._pods[key] = pod.name, since
            asyncio.get_running_loop().call_later(left, self._too_long, key, pod.name, since)
        self.hold(key, shared=not is_stuck(pod))

    def settle(self, key: Key) -> None:
        """Release the slot at the end of a reconcile that created no pod."""
        if key not in self._pods:
            self.free(key)

    def _started(self, key: Key, name: str) -> None:
        """Release the slot if the pod is the counted one: the event may be about an earlier pod."""
        if key in self._pods and self._pods[key][0] == name:
            del self._pods[key]
            self.free(key)

    def _too_long(self, key: Key, name: str, since: float) -> None:
        if self._pods.get(key) == (name, since):
            self._started(key, name)


def _now() -> float:
    return asyncio.get_running_loop().time()
