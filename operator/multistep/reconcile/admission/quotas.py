"""Queues of trials whose pods exceed a ResourceQuota. Only the first trial of a queue retries, and the others wait.

A thousand trials that retry every few seconds would overload the API server. So each namespace has one queue for each kind of pod.
Two pods are of the same kind if a quota counts the same amounts for them, because a small pod may fit where a large one does not.
The first trial of a queue retries with back-off, and soon after a pod of the namespace has ended. When it gets its pod, the next
trial retries. The queues are only in memory. After a restart, new rejections fill them again.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from multistep.backoff import Backoff
from multistep.reconcile.admission.concurrency_limit import Key

Kind = tuple[str, str]  # namespace, and the pod's fields that a quota counts, as JSON

EXCEEDED = "exceeded quota"  # every rejection by a quota has this text in its message
BACKOFF = Backoff(first=1.0, last=60.0)  # requests are retried because no event reports that a quota was raised
QUOTA_UPDATE_SECONDS = 1.0  # approximate time from a pod's end until the quota controller has counted it


@dataclass
class _Queue:
    """The queued trials of one ``Kind``."""

    keys: OrderedDict[Key, None] = field(default_factory=OrderedDict)
    """Keys of the trials, in order."""
    rejection: str = ""
    """Message of the last rejection."""
    rejections: int = 0
    """Number of rejections in a row."""
    due: float = 0.0
    """Time of the next retry."""

    @property
    def first(self) -> Key:
        return next(iter(self.keys))


@dataclass
class Try:
    """One try to create a pod."""

    rejection: str = ""
    """The quota's message, "" if no quota rejected the pod."""


class Quotas:
    """The queues of all namespaces. A reconcile for which ``may_try`` returns True creates the pod within ``trying``."""

    def __init__(self, wake: Callable[[Key], None], clock: Callable[[], float]) -> None:
        """Create the queues. ``wake`` requeues a key that may retry now. ``clock`` returns seconds since the epoch."""
        self._wake, self._clock = wake, clock
        self._queues: dict[Kind, _Queue] = {}
        self._kinds: dict[Key, Kind] = {}
        self._asked: set[Key] = set()

    @property
    def waiting(self) -> int:
        """Number of queued keys."""
        return len(self._kinds)

    def may_try(self, key: Key, pod: Mapping[str, Any], *, first: bool) -> bool:
        """Return whether a trial may create a pod with this manifest now. If not, it is queued, with ``first`` before other
        keys."""
        kind = key[0], _counted(pod)
        if self._kinds.get(key, kind) != kind:
            self._leave(key)  # a quota counts the pod differently now, so the trial belongs to another queue
        self._asked.add(key)
        if kind not in self._queues:
            return True
        queue = self._join(key, kind, first=first)
        return queue.first == key and queue.due <= self._clock()

    @contextmanager
    def trying(self, key: Key, pod: Mapping[str, Any], *, first: bool) -> Iterator[Try]:
        """Return a context manager in which the caller creates the pod. Unless it sets a rejection, the queue's next key then
        retries."""
        attempt = Try()
        try:
            yield attempt
        finally:
            self._tried(key, pod, attempt.rejection, first=first)

    def _tried(self, key: Key, pod: Mapping[str, Any], rejection: str, *, first: bool) -> None:
        if not rejection:
            self._leave(key)
            return
        queue = self._join(key, (key[0], _counted(pod)), first=first)
        queue.rejection = rejection
        if queue.first == key:
            queue.rejections += 1
            queue.due = self._clock() + BACKOFF.seconds(queue.rejections)

    def __contains__(self, key: Key) -> bool:
        return key in self._kinds

    def rejection(self, key: Key) -> str:
        """Return the message of the last rejection in the key's queue."""
        text = self._queues[self._kinds[key]].rejection
        return text[max(0, text.find(EXCEEDED)) :]  # the start is cut off because it names the pod of only one trial

    def pause(self, key: Key) -> float | None:
        """Return the seconds until a queued key may retry.

        Return None if the key is not the first in its queue. ``wake`` then requeues it when it becomes the first.
        """
        queue = self._queues[self._kinds[key]]
        return max(0.0, queue.due - self._clock()) if queue.first == key else None

    def settle(self, key: Key) -> None:
        """Remove the key from its queue at the end of a reconcile that did not call ``may_try``."""
        if key not in self._asked:
            self._leave(key)
        self._asked.discard(key)

    def withdraw(self, key: Key) -> None:
        """Remove a key from its queue, because it waits for something else. The next key then retries."""
        self._leave(key)

    def pod_ended(self, namespace: str) -> None:
        """Let the namespace's queues retry soon, because a pod was deleted or finished, so the quota may allow another pod."""
        due = self._clock() + QUOTA_UPDATE_SECONDS
        for kind, queue in self._queues.items():
            if kind[0] == namespace:
                queue.rejections = 0
                if queue.due > due:
                    queue.due = due
                    asyncio.get_running_loop().call_later(QUOTA_UPDATE_SECONDS, self._wake_first, kind)

    def _wake_first(self, kind: Kind) -> None:
        if (queue := self._queues.get(kind)) is not None:
            self._wake(queue.first)

    def _join(self, key: Key, kind: Kind, *, first: bool) -> _Queue:
        queue = self._queues.setdefault(kind, _Queue())
        if key not in queue.keys:
            queue.keys[key] = None
            if first:
                queue.keys.move_to_end(key, last=False)
        self._kinds[key] = kind
        return queue

    def _leave(self, key: Key) -> None:
        kind = self._kinds.pop(key, None)
        if kind is None:
            return
        queue = self._queues[kind]
        was_first = queue.first == key
        del queue.keys[key]
        if not queue.keys:
            del self._queues[kind]
        elif was_first:
            queue.rejections, queue.due = 0, self._clock()
            self._wake(queue.first)


def _counted(pod: Mapping[str, Any]) -> str:
    """Return, as JSON, the pod's fields that a quota counts or selects by: the containers' resources and the priority class."""
    spec = pod["spec"]
    containers = [each.get("resources") for each in (*spec.get("initContainers", ()), *spec["containers"])]
    return json.dumps([containers, spec.get("priorityClassName")], sort_keys=True)
