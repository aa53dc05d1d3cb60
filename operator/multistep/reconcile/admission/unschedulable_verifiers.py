"""Decides which trial releases its pods if the verifiers of several trials fit no node."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

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


class UnschedulableVerifiers:
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
