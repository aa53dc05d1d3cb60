"""Limits the number of starting pods, and decides which trial releases its pod if verifiers' pods fit no node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from multistep.engine.lifecycle.decisions import PodFacts
from multistep.engine.lifecycle.pod_start import is_stuck
from multistep.reconcile.admission.concurrency_limit import ConcurrencyLimit, Key, Wake

STARTING_SECONDS = 60.0  # a pod that takes longer usually waits for its image or a node, and must not delay other pods


class PodStarts(ConcurrencyLimit):
    """Limits the number of pods that are created but not running yet. A trial starts one pod at a time, so it has one slot.

    A stuck pod, for example one whose image cannot be pulled, counts only toward the limit of its namespace. No pod holds a slot
    for longer than STARTING_SECONDS. So stuck pods slow down their own namespace, and block no other.
    """

    def __init__(self, limit: int, wake: Wake, clock: Callable[[], float]) -> None:
        """Create the limit. ``clock`` returns seconds since the epoch."""
        super().__init__(limit, wake)
        self._clock = clock
        self._pods: dict[Key, tuple[str, float]] = {}  # name of the starting pod, and the time of its scheduling or creation

    def observe(self, key: Key, pod: PodFacts, *, deleted: bool = False) -> None:
        """Update the trial's slot from the observed state of its pod. ``deleted`` means that the pod no longer exists."""
        since = pod.scheduled_at or pod.created_at
        left = min(STARTING_SECONDS, since + STARTING_SECONDS - self._clock())
        done = deleted or pod.running or pod.terminated or pod.deleting or pod.phase != "Pending"
        if done or pod.gates or left <= 0:  # a pod with scheduling gates puts no load on nodes or registries
            self._started(key, pod.name)
            return
        if self._pods.get(key) != (pod.name, since):
            self._pods[key] = pod.name, since
            asyncio.get_running_loop().call_later(left, self._too_long, key, pod.name, since)
        self.hold(key, shared=not is_stuck(pod))

    def _started(self, key: Key, name: str) -> None:
        """Release the trial's slot if this pod holds it. An event may be about an earlier pod that holds no slot."""
        if key in self._pods and self._pods[key][0] == name:
            del self._pods[key]
            self.release(key)

    def _too_long(self, key: Key, name: str, since: float) -> None:
        if self._pods.get(key) == (name, since):
            self._started(key, name)
