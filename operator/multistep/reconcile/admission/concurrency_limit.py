"""A concurrency limit that is fair between namespaces, so that five trials do not wait for another namespace's five thousand.

A trial or sweep that gets no slot is queued. It occupies no worker and no connection, and is requeued when it gets its slot. At the
end of each reconcile, even a failed one, its slots are released, except those that a pod, a job or an active trial keeps
(reconcile.admission.admission). The limits only bound the load, so a wrong count affects no result.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

Key = tuple[str, str]  # namespace and name
Wake = Callable[[Key], None]


class FairQueue:
    """A queue, round-robin between namespaces, first in first out within one. Each operation takes constant time."""

    def __init__(self) -> None:
        self._lines: OrderedDict[str, deque[Key]] = OrderedDict()
        self._keys: set[Key] = set()

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, key: Key) -> bool:
        return key in self._keys

    def add(self, key: Key) -> None:
        """Append a key to its namespace's queue. A queued key keeps its position."""
        if key not in self._keys:
            self._keys.add(key)
            self._lines.setdefault(key[0], deque()).append(key)

    @property
    def namespaces(self) -> Collection[str]:
        """The namespaces with queued keys. ``pop`` takes a key of the first one next."""
        return self._lines.keys()

    def remove(self, key: Key) -> None:
        """Remove a key, wherever it is in its namespace's queue. Idempotent."""
        if key in self._keys:
            self._keys.discard(key)
            self._lines[key[0]].remove(key)
            if not self._lines[key[0]]:
                del self._lines[key[0]]

    def first(self, namespace: str) -> Key:
        """Return a namespace's first queued key."""
        return self._lines[namespace][0]

    def pop(self, namespace: str | None = None) -> Key:
        """Remove and return the next key, of a namespace if given. The next turn of the key's namespace comes after all others."""
        chosen = next(iter(self._lines)) if namespace is None else namespace
        line = self._lines[chosen]
        key = line.popleft()
        self._keys.discard(key)
        if line:
            self._lines.move_to_end(chosen)
        else:
            del self._lines[chosen]
        return key


@dataclass(frozen=True)
class _Slots:
    """The slots that a key holds."""

    slots: int
    """Number of slots."""
    shared: bool = True
    """Whether the slots count toward the limit, and not only toward the limit of the key's namespace."""


@dataclass(frozen=True)
class _Request:
    """A queued request."""

    slots: int
    """Number of requested slots."""
    since: float
    """Start of the wait, in the event loop's time."""


class ConcurrencyLimit:
    """Assigns slots to keys.

    Of the namespaces with queued keys, the one that holds the fewest slots gets the next free slot. If several hold equally few, it
    is the one whose last slot was assigned longest ago.
    """

    def __init__(self, limit: int, wake: Wake, *, max_per_namespace: int | None = None) -> None:
        """Create the limit. ``wake`` is called with a queued key when it gets its slots.

        ``max_per_namespace`` is the limit of one namespace. None means the same as ``limit``.
        """
        self.limit = limit
        self._max_per_namespace = max(1, limit if max_per_namespace is None else max_per_namespace)
        self._wake = wake
        self._held: dict[Key, _Slots] = {}
        self._shared = 0
        self._by_namespace: Counter[str] = Counter()
        self._wanted: dict[Key, _Request] = {}
        self._kept: set[Key] = set()  # keys whose slots are held until ``release``
        self._carried: set[Key] = set()  # keys whose slots the next reconcile may still use
        self._queues = FairQueue(), FairQueue()
        self._grants = 0
        self._last_grant: dict[str, int] = {}  # number of the last grant of each namespace, which breaks ties

    @property
    def held(self) -> int:
        """Number of held slots that count toward the limit."""
        return self._shared

    @property
    def waiting(self) -> int:
        """Number of queued keys."""
        return len(self._wanted)

    def acquire(self, key: Key, slots: int = 1, *, first: bool = False) -> bool:
        """Return whether the key has its slots. If not, it is queued, and with ``first`` before all keys without this flag.

        If a queued key gets its slots before its reconcile ends, they are held for the next reconcile. Otherwise keys that are
        queued and then write a status would release their slots unused, one after the other.
        """
        if key not in self._held and key not in self._wanted:
            self._wanted[key] = _Request(min(slots, self.limit), _now())
            self._queues[not first].add(key)
            self._serve(asking=key)
        (self._carried.discard if key in self._held else self._carried.add)(key)
        return key in self._held

    def carry(self, key: Key) -> None:
        """Hold the key's slots, if any, for its next reconcile, because the key first waits for something else."""
        self._carried.add(key)

    @contextmanager
    def using(self, key: Key) -> Iterator[None]:
        """Release the key's slots at the end of the ``with`` block, earlier than at the end of the reconcile."""
        try:
            yield
        finally:
            self.release(key)

    def has(self, key: Key) -> bool:
        """Return whether a key holds slots."""
        return key in self._held

    def is_queued(self, key: Key) -> bool:
        """Return whether a key is queued for slots."""
        return key in self._wanted

    def resize(self, limit: int) -> None:
        """Change the limit. Keys keep the slots that they hold, even beyond the new limit."""
        self.limit = limit
        self._serve()

    def waited(self, key: Key) -> float:
        """Return the seconds for which a key has been queued."""
        wanted = self._wanted.get(key)
        return _now() - wanted.since if wanted else 0.0

    def hold(self, key: Key, *, shared: bool) -> None:
        """Let the key hold one slot until ``release``, even beyond the limit.

        ``shared`` is whether the slot counts toward the limit.
        """
        self._change(key, _Slots(1, shared))
        self.keep(key)
        self._serve()

    def keep(self, key: Key) -> None:
        """Hold the key's slots until ``release``, also after the end of its reconcile."""
        self._kept.add(key)

    def keeps(self, key: Key) -> bool:
        """Return whether the key's slots are held until ``release``."""
        return key in self._kept

    def drop(self, key: Key, *, carried: bool = True) -> None:
        """Undo ``keep``, and with ``carried`` also ``carry``, so that the end of the running reconcile releases the slots."""
        self._kept.discard(key)
        if carried:
            self._carried.discard(key)

    def release(self, key: Key) -> None:
        """Release the key's slots, if any. A queued key stays queued."""
        self.drop(key)
        self._change(key, None)
        self._serve()

    def settle(self, key: Key) -> None:
        """Release the key's slots at the end of a reconcile, unless they are kept or carried to the next reconcile."""
        if key in self._carried:
            self._carried.discard(key)
        elif key not in self._kept:
            self.release(key)

    def leave(self, key: Key) -> None:
        """Remove the key from the queue, and release its slots unless they are kept.

        This is called once the key has what it waited for, because a reconcile that then takes long must not hold a slot.
        """
        if self._wanted.pop(key, None) is not None:
            for queue in self._queues:
                queue.remove(key)
        self._carried.discard(key)
        if key not in self._kept:
            self.release(key)

    def _change(self, key: Key, held: _Slots | None) -> None:
        for each, sign in ((self._held.pop(key, None), -1), (held, 1)):
            if each is not None:
                self._by_namespace[key[0]] += sign * each.slots
                self._shared += sign * each.slots * each.shared
        if held is not None:
            self._held[key] = held
        if not self._by_namespace[key[0]]:
            del self._by_namespace[key[0]]
            if not any(key[0] in queue.namespaces for queue in self._queues):
                self._last_grant.pop(key[0], None)

    def _serve(self, *, asking: Key | None = None) -> None:
        """Give free slots to queued keys, in order."""
        while (key := self._next()) is not None:
            self._grants += 1
            self._last_grant[key[0]] = self._grants
            self._change(key, _Slots(self._wanted.pop(key).slots))
            if key != asking:
                self._wake(key)

    def _next(self) -> Key | None:
        for queue in self._queues:
            eligible = [each for each in queue.namespaces if self._by_namespace[each] < self._max_per_namespace]
            if not eligible:
                continue
            namespace = min(eligible, key=lambda each: (self._by_namespace[each], self._last_grant.get(each, 0)))
            if self._shared + self._wanted[queue.first(namespace)].slots > self.limit:
                return None  # a later key that needs fewer slots must not overtake this one
            return queue.pop(namespace)
        return None


def _now() -> float:
    return asyncio.get_running_loop().time()
