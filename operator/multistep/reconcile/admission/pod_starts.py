"""Limits the number of starting pods, and decides which trial releases its pod if verifiers' pods fit no node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

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


WAIT_SECONDS: Final = 300.0  # a cluster autoscaler usually adds a node within this time
_PAUSE_SECONDS: Final = 60.0  # minimum time between two trials of one namespace that release their pods
_MOST_TIMES: Final = 3  # a trial releases its pod at most this often
_STALE_SECONDS: Final = 120.0  # a trial that was not seen for this time no longer waits, because a waiting one is seen every 30 s


class _Waiting(NamedTuple):
    """A trial whose verifier's pod fits no node."""

    namespace: str
    since: float
    seen: float
    may_give_way: bool


class VerifierRoom:
    """Decides which trial releases its pod if the pods of several trials' verifiers fit no node.

    Otherwise all these trials could wait for each other's room forever. Times are in seconds since the epoch.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, _Waiting] = {}
        self._gave_way_at: dict[str, float] = {}  # when a trial of the namespace last released its pod, by namespace

    def wait(self, uid: str, namespace: str, now: float, times: int = 0) -> bool:
        """Record that the trial's verifier fits no node, and return whether the trial releases its pod.

        It does if other trials wait too, it started to wait last, and it has waited for WAIT_SECONDS. ``times`` is how often it
        released its pod before.
        """
        since = self._waiting[uid].since if uid in self._waiting else now
        self._waiting[uid] = own = _Waiting(namespace, since, now, times < _MOST_TIMES)
        others = list(self._others(uid, namespace, now))
        last = all((each.since, other) < (since, uid) for other, each in others if each.may_give_way)
        long = now - since >= WAIT_SECONDS and now - self._gave_way_at.get(namespace, 0.0) >= _PAUSE_SECONDS
        if not (own.may_give_way and others and last and long):
            return False
        self._gave_way_at = {each: at for each, at in self._gave_way_at.items() if now - at < _PAUSE_SECONDS} | {namespace: now}
        self.end(uid)
        return True

    def end(self, uid: str) -> None:
        """Record that the trial no longer waits."""
        self._waiting.pop(uid, None)

    def others_wait(self, uid: str, namespace: str, now: float) -> bool:
        """Return whether a verifier of another trial of the namespace fits no node."""
        return any(self._others(uid, namespace, now))

    def _others(self, uid: str, namespace: str, now: float) -> Iterable[tuple[str, _Waiting]]:
        self._waiting = {other: each for other, each in self._waiting.items() if now - each.seen < _STALE_SECONDS}
        return ((other, each) for other, each in self._waiting.items() if other != uid and each.namespace == namespace)
