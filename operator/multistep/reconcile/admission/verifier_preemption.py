"""Decides which trial gives way if separate verifiers' pods of several trials fit no node, because the agents' pods of these trials
occupy it: each would wait for the others until its deadline.

Only trials of one namespace give way to each other: a verifier that fits no node must not cost other users their agents' work.
In memory only: a new leader starts to count again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

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
        self._gave_way_at = 0.0

    def wait(self, uid: str, namespace: str, now: float, times: int = 0) -> bool:
        """Record that the trial's verifier fits no node. Return whether the trial gives way: it began to wait last, others wait,
        too, and it has waited for WAIT_SECONDS. times: how often it gave way before."""
        since = self._waiting[uid].since if uid in self._waiting else now
        self._waiting[uid] = own = _Waiting(namespace, since, now, times < _MOST_TIMES)
        others = list(self._others(uid, namespace, now))
        last = all((each.since, other) < (since, uid) for other, each in others if each.may_give_way)
        long = now - since >= WAIT_SECONDS and now - self._gave_way_at >= _PAUSE_SECONDS
        if not (own.may_give_way and others and last and long):
            return False
        self._gave_way_at = now
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
