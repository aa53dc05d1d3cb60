"""A queue of keys, round-robin between namespaces: five trials do not wait behind another namespace's five thousand."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator

Key = tuple[str, str]  # namespace, name


class Turns:
    """A queue with each key at most once, first in first out within a namespace. Each operation takes constant time."""

    def __init__(self) -> None:
        self._lines: OrderedDict[str, deque[Key]] = OrderedDict()
        self._keys: set[Key] = set()

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, key: Key) -> bool:
        return key in self._keys

    def add(self, key: Key) -> None:
        """Append a key to its namespace's queue; a queued key keeps its position."""
        if key not in self._keys:
            self._keys.add(key)
            self._lines.setdefault(key[0], deque()).append(key)

    @property
    def namespaces(self) -> Iterator[str]:
        """The namespaces with queued keys, the next one first."""
        return iter(self._lines)

    def first(self, namespace: str) -> Key:
        """Return a namespace's first queued key."""
        return self._lines[namespace][0]

    def take(self, namespace: str | None = None) -> Key:
        """Take the next key, or the next of a namespace; the namespace then goes to the end of the round."""
        chosen = next(self.namespaces) if namespace is None else namespace
        line = self._lines[chosen]
        key = line.popleft()
        self._keys.discard(key)
        if line:
            self._lines.move_to_end(chosen)
        else:
            del self._lines[chosen]
        return key
