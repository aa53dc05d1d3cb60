"""The concurrency limit on starting pods."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from multistep.engine.lifecycle.decisions import PodFacts
from multistep.engine.lifecycle.pod_start import is_stuck
from multistep.reconcile.admission.concurrency_limit import ConcurrencyLimit, Key, Wake

STARTING_SECONDS = 60.0  # a pod that takes longer usually waits for its image or node, and must not delay other pods


class PodStarts(ConcurrencyLimit):
    """Limits the number of pods that are created but not running yet. A trial starts one pod at a time, so it has one slot.

    A stuck pod (unschedulable, image cannot be pulled) holds a slot of its namespace only, and no pod holds a slot for longer
    than STARTING_SECONDS: stuck pods slow down their own namespace, and block no other. clock: seconds since the epoch.
    """

    def __init__(self, limit: int, wake: Wake, clock: Callable[[], float]) -> None:
        super().__init__(limit, wake)
        self._clock = clock
        self._pods: dict[Key, tuple[str, float]] = {}  # name of the starting pod, and epoch seconds of its scheduling or creation

    def observe(self, key: Key, pod: PodFacts, *, deleted: bool = False) -> None:
        """Update the slot from the trial's pod as the cluster reports it. deleted: the pod was deleted."""
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
        """Release the trial's slot if this pod holds it. An event may be about an earlier pod, which holds no slot."""
        if key in self._pods and self._pods[key][0] == name:
            del self._pods[key]
            self.release(key)

    def _too_long(self, key: Key, name: str, since: float) -> None:
        if self._pods.get(key) == (name, since):
            self._started(key, name)


WAIT_SECONDS: Final = 300.0  # a cluster that grows has a new node by then
_PAUSE_SECONDS: Final = 60.0  # in which verifiers get the room that a trial gave up
_MOST_TIMES: Final = 3
_STALE_SECONDS: Final = 120.0  # a waiting trial is reconciled every 30 s


class _Waiting(NamedTuple):
    namespace: str
    since: float
    seen: float
    may_give_way: bool


class VerifierRoom:
    """The trials whose verifier's pod fits no node, by their UIDs. Times are in seconds since the epoch."""

    def __init__(self) -> None:
        self._waiting: dict[str, _Waiting] = {}
        self._gave_way_at: dict[str, float] = {}  # by namespace

    def wait(self, uid: str, namespace: str, now: float, times: int = 0) -> bool:
        """Record that the trial's verifier fits no node. Return whether the trial gives way: it began to wait last, others wait,
        too, and it has waited for WAIT_SECONDS. times: how often it gave way before."""
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
        """Record that the trial waits no longer."""
        self._waiting.pop(uid, None)

    def others_wait(self, uid: str, namespace: str, now: float) -> bool:
        """Return whether a verifier of another trial of the namespace fits no node."""
        return any(self._others(uid, namespace, now))

    def _others(self, uid: str, namespace: str, now: float) -> Iterable[tuple[str, _Waiting]]:
        self._waiting = {other: each for other, each in self._waiting.items() if now - each.seen < _STALE_SECONDS}
        return ((other, each) for other, each in self._waiting.items() if other != uid and each.namespace == namespace)
