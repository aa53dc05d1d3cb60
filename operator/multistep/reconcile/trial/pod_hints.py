"""Hints about trials' pods from earlier exec sessions: whether to open another session, and what breaks the sessions.

The cause may be the pod, its node or the cluster.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from multistep.backoff import Backoff
from multistep.engine.lifecycle.decisions import ProtocolViolation
from multistep.reconcile.admission.concurrency_limit import Key

_UNREADY = Backoff(first=5.0, last=60.0)
# Maximum numbers of failed reads and of broken sessions after the deadline. The trial must end even if a proxy refuses all sessions
# or the pod breaks them.
_MAX_FAILED = 20
_MAX_LOST = 5
# Minimum time between the first and the last broken session before a conclusion. It is longer than the restart of a component that
# connects the API server with the nodes.
_LOST_SECONDS = 90.0
_UNRESPONSIVE_SECONDS = 3600.0  # the minimum before the deadline or without one, if sessions with other pods work
_LONGEST_SECONDS = 4 * 3600.0  # the minimum if no session works, or if the runner answers before a session breaks


@dataclass
class Breaks:
    """A series of broken exec sessions. Times are in seconds since the epoch."""

    count: int = 0
    first: float = 0.0
    """When the first session broke."""
    last: float = 0.0
    """When the last session broke."""

    def add(self, now: float) -> None:
        """Record one more broken session."""
        self.count, self.first, self.last = self.count + 1, self.first if self.count else now, now

    def lasted(self, seconds: float) -> bool:
        """Return whether enough sessions broke, over at least this many seconds."""
        return self.count >= _MAX_LOST and self.last - self.first >= seconds


@dataclass
class PodHint:
    """What earlier exec sessions have shown about a pod. Times are in seconds since the epoch."""

    uid: str
    """UID of the pod."""
    trial: Key = ("", "")
    quiet_until: float = 0.0
    """Until this time a phase is assumed to run, so the pod needs an exec session only if it becomes unready."""
    violation: ProtocolViolation | None = None
    """Protocol violations of the pod's runner in a row, None if the last session had none."""
    unready_until: float = 0.0
    """Until this time an unready pod needs no session either, because the last session found no result."""
    empty_sessions: int = 0
    """Number of sessions in a row that found no result."""
    read_at_deadline: bool = False
    """Whether the pod was read after the trial's deadline."""
    failed_reads: int = 0
    """Number of reads after the deadline that failed for reasons outside the pod."""
    lost_reads: int = 0
    """Number of reads after the deadline whose session broke, for which the pod's containers may be the cause."""
    node: str = ""
    """The pod's node."""
    worked_at: float = 0.0
    """End of the last session that did not break."""
    answered: bool = False
    """Whether the runner answered in the last session."""
    answered_at: float = 0.0
    """When the runner last answered."""
    lost: Breaks = field(default_factory=Breaks)
    """The sessions that broke since the last one that worked."""
    lost_beside_node: Breaks = field(default_factory=Breaks)
    """Those of ``lost`` without an answer that broke after a session with another pod of the node had worked."""
    lost_beside_any: Breaks = field(default_factory=Breaks)
    """Those of ``lost`` without an answer that broke after a session with another pod of any node had worked."""
    error: str = ""
    """Error of the last session, "" if it worked."""

    def phase_runs(self, now: float, poll: float, *, ready: bool, found_nothing: bool) -> float:
        """Record that a session ended while a phase runs. Return the seconds until the pod's next reconcile, at most ``poll``.

        A pod that is not ready gets its next session soon. It may stay unready, e.g. if a client floods the port of its readiness
        probe, and then no event reports the phase's result. ``found_nothing`` means that the session was opened because the pod was
        not ready, but found no result. Each such session doubles the pause.
        """
        self.quiet_until = now + poll
        self.empty_sessions = self.empty_sessions + 1 if found_nothing else 0
        pause = min(poll, _UNREADY.seconds(self.empty_sessions + 1))
        self.unready_until = now + pause if found_nothing else 0.0
        return poll if ready else pause

    def was_not_read(self, error: str) -> None:
        """Record that the operator could not read the pod, for a reason outside the pod."""
        self.failed_reads += self.read_at_deadline
        self.read_at_deadline, self.error = False, error

    @property
    def cannot_be_read(self) -> bool:
        """Return whether so many reads after the deadline failed for reasons outside the pod that the operator tries no more."""
        return self.failed_reads > _MAX_FAILED

    @property
    def breaks_alone(self) -> bool:
        """Return whether so many sessions broke, while some with other pods worked, that this pod or its node is the cause."""
        return self.lost_beside_any.lasted(_LOST_SECONDS)

    @property
    def alone_since(self) -> float:
        """Return the time after which a working session with another pod shows that this pod or its node is the cause."""
        return max(self.lost.first, self.answered_at)


class PodHints:
    """The hints about all trials' pods, at most one per trial, about its current pod."""

    def __init__(self) -> None:
        self._by_trial: dict[Key, PodHint] = {}
        self._worked: dict[str, float] = {}  # when a session with one of a node's pods last worked, by node
        self._broke: dict[str, PodHint] = {}  # hint of a node's last former pod whose sessions broke, by node

    def __len__(self) -> int:
        return len(self._by_trial)

    def of(self, key: Key, uid: str | None) -> PodHint:
        """Return the hint about a trial's pod. The hint about an earlier pod of the trial is dropped."""
        if uid is None:
            return PodHint("")
        hint = self._by_trial.get(key)
        if hint is None or hint.uid != uid:
            hint = self._by_trial[key] = PodHint(uid, key)
        return hint

    def runner_answered(self, hint: PodHint, now: float) -> None:
        """Record that the pod's runner answered in a session, so that neither pod nor node breaks all sessions."""
        hint.answered, hint.answered_at = True, now
        hint.lost_beside_node, hint.lost_beside_any = Breaks(), Breaks()
        self._worked[hint.node] = max(now, self._worked.get(hint.node, 0.0))

    def did_not_break(self, hint: PodHint, now: float) -> None:
        """Record that a session did not break, although its operations may have failed."""
        self.runner_answered(hint, now)
        hint.worked_at, hint.lost, hint.lost_reads = now, Breaks(), 0

    def worked(self, hint: PodHint, now: float) -> None:
        """Record that a session succeeded."""
        self.did_not_break(hint, now)
        hint.failed_reads, hint.error = 0, ""

    def session_lost(self, hint: PodHint, error: str, now: float) -> None:
        """Record that a session broke. The pod's containers or the infrastructure may be the cause."""
        hint.lost_reads += hint.read_at_deadline
        hint.read_at_deadline, hint.error = False, error
        hint.lost.add(now)
        if not hint.answered and self._node_worked(hint):
            hint.lost_beside_node.add(now)
        if not hint.answered and self._any_worked(hint):
            hint.lost_beside_any.add(now)

    def breaks_sessions(self, hint: PodHint) -> bool:
        """Return whether so many sessions broke after the deadline, for so long, that the operator opens no more."""
        return hint.lost_reads >= _MAX_LOST and hint.lost.lasted(_LOST_SECONDS) and self._is_conclusive(hint)

    def is_unresponsive(self, hint: PodHint) -> bool:
        """Return whether sessions have broken for so long that the operator no longer waits for the pod."""
        return hint.lost.lasted(_UNRESPONSIVE_SECONDS if hint.breaks_alone else _LONGEST_SECONDS) and self._is_conclusive(hint)

    def _is_conclusive(self, hint: PodHint) -> bool:
        """Return whether a conclusion from the pod's broken sessions is possible.

        If a session with another pod has worked since the first break, the outage of all sessions is over. Then enough sessions
        with this pod must have broken after that, too.
        """
        node = not self._node_worked(hint) or hint.lost_beside_node.lasted(_LOST_SECONDS)
        return hint.answered or (node and (not self._any_worked(hint) or hint.breaks_alone))

    def _node_worked(self, hint: PodHint) -> bool:
        """Return whether a session with another pod of the node has worked since this pod's sessions started to break."""
        return self._worked.get(hint.node, 0.0) > hint.alone_since

    def _any_worked(self, hint: PodHint) -> bool:
        return any(at > hint.alone_since for at in self._worked.values())

    def node_works(self, hint: PodHint) -> bool | None:
        """Return whether exec sessions with other pods of the pod's node work, None if nothing is known about them.

        The result is True only if enough sessions with this pod broke after one with another pod had worked. A pod whose sessions
        already broke while a session with this pod still worked shows nothing about the node. Otherwise two agents that break their
        sessions would excuse each other.
        """
        if hint.lost_beside_node.lasted(_LOST_SECONDS):
            return True
        pods = [each for each in self._by_trial.values() if each is not hint and each.node == hint.node]
        if (ended := self._broke.get(hint.node)) is not None and ended.trial != hint.trial:
            pods.append(ended)
        return False if any(each.lost.count and each.lost.first >= hint.worked_at for each in pods) else None

    def forget(self, key: Key) -> None:
        """Drop the hint of a trial that no longer exists or no longer needs its pod.

        If its sessions broke, this stays known, because it matters for the other pods of the node.
        """
        hint = self._by_trial.pop(key, None)
        if hint is not None and hint.lost.count:
            self._broke[hint.node] = hint

    def clear(self) -> None:
        """Drop all hints, for example after a restore of the API server's store, which makes them unreliable."""
        self._by_trial.clear()
        self._worked.clear()
        self._broke.clear()
