"""A line of keys in which namespaces take turns: five trials do not wait behind another namespace's five thousand."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator

Key = tuple[str, str]  # namespace, name


class Turns:
    """Each key at most once. Within a namespace first come is first served. All takes the same time, however many wait."""

    def __init__(self) -> None:
        self._lines: OrderedDict[str, deque[Key]] = OrderedDict()
        self._keys: set[Key] = set()

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, key: Key) -> bool:
        return key in self._keys

    def add(self, key: Key) -> None:
        """Put a key at the end of its namespace's line; one that is there keeps its place."""
        if key not in self._keys:
            self._keys.add(key)
            self._lines.setdefault(key[0], deque()).append(key)

    @property
    def namespaces(self) -> Iterator[str]:
        """Those of which a key waits, the one whose turn it is first."""
        return iter(self._lines)

    def first(self, namespace: str) -> Key:
        """The key of a namespace that waits longest."""
        return self._lines[namespace][0]

    def take(self, namespace: str | None = None) -> Key:
        """The next key, or the next of a namespace; that namespace's next turn comes after all others'."""
        chosen = next(self.namespaces) if namespace is None else namespace
        line = self._lines[chosen]
        key = line.popleft()
        self._keys.discard(key)
        if line:
            self._lines.move_to_end(chosen)
        else:
            del self._lines[chosen]
        return key
