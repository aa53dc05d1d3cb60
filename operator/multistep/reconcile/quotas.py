"""Trials whose pods a ResourceQuota has no room for: of those that ask for the same, one tries again, and the others wait.

A thousand trials that each try every few seconds would be a storm, and all but a few of their requests in vain. So there is a
line for each namespace and each kind of pod (what a quota counts: a large pod may find no room where a small one does). The first
of a line tries, later each time, and soon after a pod of the namespace went; whoever gets a pod lets the next one try.
This is about load alone: lines are made anew by what the API server refuses.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..backoff import Backoff
from .turns import Key

Kind = tuple[str, str]  # namespace, and what of a pod a quota counts

EXCEEDED = "exceeded quota"  # in every such refusal
BACKOFF = Backoff(first=1.0, last=60.0)  # a quota may be raised, and nobody tells
ROOM_SECONDS = 1.0  # from a pod's end until quotas have it counted, more or less


@dataclass
class _Line:
    """keys: who waits, the one that tries first. refusal: what was said last; refusals: in a row; due: when one tries next."""

    keys: OrderedDict[Key, None] = field(default_factory=OrderedDict)
    refusal: str = ""
    refusals: int = 0
    due: float = 0.0

    @property
    def first(self) -> Key:
        return next(iter(self.keys))


class Quotas:
    """wake: called for a key that may try now; clock: seconds since the epoch.

    A look that asks ``may_try`` and then tries says how it went by ``tried``.
    """

    def __init__(self, wake: Callable[[Key], None], clock: Callable[[], float]) -> None:
        self._wake, self._clock = wake, clock
        self._lines: dict[Kind, _Line] = {}
        self._kinds: dict[Key, Kind] = {}
        self._asked: set[Key] = set()

    @property
    def waiting(self) -> int:
        """Keys in lines."""
        return len(self._kinds)

    def may_try(self, key: Key, pod: Mapping[str, Any], *, first: bool) -> bool:
        """Whether a trial may ask for a pod (its manifest) now; else it is in the line. first: before those who do not say so."""
        kind = key[0], _counted(pod)
        if self._kinds.get(key, kind) != kind:
            self._leave(key)  # it wants another pod than before
        self._asked.add(key)
        if kind not in self._lines:
            return True
        line = self._join(key, kind, first=first)
        return line.first == key and line.due <= self._clock()

    def tried(self, key: Key, pod: Mapping[str, Any], refusal: str, *, first: bool) -> None:
        """It asked for its pod. refusal: of a quota; if it is "", the next one may try."""
        if not refusal:
            self._leave(key)
            return
        line = self._join(key, (key[0], _counted(pod)), first=first)
        line.refusal = refusal
        if line.first == key:
            line.refusals += 1
            line.due = self._clock() + BACKOFF.seconds(line.refusals)

    def __contains__(self, key: Key) -> bool:
        return key in self._kinds

    def refusal(self, key: Key) -> str:
        """What the one was told that tries for a key in the line."""
        told = self._lines[self._kinds[key]].refusal
        return told[max(0, told.find(EXCEEDED)) :]  # what comes before names another pod

    def pause(self, key: Key) -> float | None:
        """Seconds until a key in the line may try; None: it is woken then."""
        line = self._lines[self._kinds[key]]
        return max(0.0, line.due - self._clock()) if line.first == key else None

    def settle(self, key: Key) -> None:
        """A look is over: who did not ask for a pod in it wants none any more."""
        if key not in self._asked:
            self._leave(key)
        self._asked.discard(key)

    def went(self, namespace: str) -> None:
        """A pod of the namespace is gone, or ended: there may be room soon."""
        due = self._clock() + ROOM_SECONDS
        for kind, line in self._lines.items():
            if kind[0] == namespace:
                line.refusals = 0
                if line.due > due:
                    line.due = due
                    asyncio.get_running_loop().call_later(ROOM_SECONDS, self._wake_first, kind)

    def _wake_first(self, kind: Kind) -> None:
        if (line := self._lines.get(kind)) is not None:
            self._wake(line.first)

    def _join(self, key: Key, kind: Kind, *, first: bool) -> _Line:
        line = self._lines.setdefault(kind, _Line())
        if key not in line.keys:
            line.keys[key] = None
            if first:
                line.keys.move_to_end(key, last=False)
        self._kinds[key] = kind
        return line

    def _leave(self, key: Key) -> None:
        kind = self._kinds.pop(key, None)
        if kind is None:
            return
        line = self._lines[kind]
        was_first = line.first == key
        del line.keys[key]
        if not line.keys:
            del self._lines[kind]
        elif was_first:
            line.refusals, line.due = 0, self._clock()
            self._wake(line.first)


def _counted(pod: Mapping[str, Any]) -> str:
    """What a quota counts or selects by: resources of containers, the priority class."""
    spec = pod["spec"]
    containers = [each.get("resources") for each in (*spec.get("initContainers", ()), *spec["containers"])]
    return json.dumps([containers, spec.get("priorityClassName")], sort_keys=True)
