"""What exec sessions with the pods of trials have shown: whether a pod is worth another session, and whether it, its node, or the
cluster breaks them."""

from __future__ import annotations

from dataclasses import dataclass, field

from multistep.backoff import Backoff
from multistep.engine.lifecycle.decisions import ProtocolViolation
from multistep.reconcile.admission.concurrency_limit import Key

_UNREADY = Backoff(first=5.0, last=60.0)
# Maximum numbers of reads after the deadline: the trial must end even if a proxy refuses all sessions, or its pod breaks them.
_MAX_FAILED = 20
_MAX_LOST = 5
_LOST_SECONDS = 90.0  # minimum time in which they break: what connects the API server with nodes restarts faster
_UNRESPONSIVE_SECONDS = 3600.0  # the same before the deadline, or without one, while sessions with other pods work
_LONGEST_SECONDS = 4 * 3600.0  # the same if none works anywhere, or if the runner answers and the sessions break later


@dataclass
class Breaks:
    """A series of broken exec sessions. first, last: when the first and the last one broke, in seconds since the epoch."""

    count: int = 0
    first: float = 0.0
    last: float = 0.0

    def add(self, now: float) -> None:
        """Record that one more session broke."""
        self.count, self.first, self.last = self.count + 1, self.first if self.count else now, now

    def lasted(self, seconds: float) -> bool:
        """Return whether enough sessions broke, over at least so many seconds."""
        return self.count >= _MAX_LOST and self.last - self.first >= seconds


@dataclass
class PodHint:
    """A hint about the pod with this UID, of this trial. Times are seconds since the epoch.

    quiet_until: until this time a phase is assumed to run, so the pod needs an exec session only if it becomes unready;
    unready_until: until this time an unready pod needs no session either, because the last session found no result;
    empty_sessions: number of sessions in a row that found no result; violation: protocol violations of the pod's runner;
    read_at_deadline: whether the pod was read after the trial's deadline; failed_reads, lost_reads: number of reads after the
    deadline that failed for reasons outside the pod, and whose session broke, for which the pod's containers may be the cause;
    node: the pod's node; worked_at: end of the last session that did not break; answered: whether the runner answered in the last
    session; answered_at: when it last answered; lost: the sessions that broke since one worked; lost_beside_node,
    lost_beside_any: those among them without an answer, since one with another pod of the node, or of any node, worked; error: that
    of the last session, "" if it worked."""

    uid: str
    trial: Key = ("", "")
    quiet_until: float = 0.0
    violation: ProtocolViolation | None = None
    unready_until: float = 0.0
    empty_sessions: int = 0
    read_at_deadline: bool = False
    failed_reads: int = 0
    lost_reads: int = 0
    node: str = ""
    worked_at: float = 0.0
    answered: bool = False
    answered_at: float = 0.0
    lost: Breaks = field(default_factory=Breaks)
    lost_beside_node: Breaks = field(default_factory=Breaks)
    lost_beside_any: Breaks = field(default_factory=Breaks)
    error: str = ""

    def phase_runs(self, now: float, poll: float, *, ready: bool, found_nothing: bool) -> float:
        """Record that a session ended while a phase runs. Return the seconds until the pod's next reconcile, at most ``poll``.

        A pod that is not ready gets its next session soon: it may stay unready, e.g. if a client floods the port of its readiness
        probe, and then no event reports the phase's result. found_nothing: the session was opened because the pod was not ready,
        but found no result; each such session doubles the pause.
        """
        self.quiet_until = now + poll
        self.empty_sessions = self.empty_sessions + 1 if found_nothing else 0
        pause = min(poll, _UNREADY.seconds(self.empty_sessions + 1))
        self.unready_until = now + pause if found_nothing else 0.0
        return poll if ready else pause

    def was_not_read(self, error: str) -> None:
        """Record that a read failed for a reason outside the pod."""
        self.failed_reads += self.read_at_deadline
        self.read_at_deadline, self.error = False, error

    @property
    def cannot_be_read(self) -> bool:
        """Return whether so many reads after the deadline failed for reasons outside the pod that there is no further one."""
        return self.failed_reads > _MAX_FAILED

    @property
    def breaks_alone(self) -> bool:
        """Return whether so many sessions broke while some with other pods worked that this pod or its node is the cause."""
        return self.lost_beside_any.lasted(_LOST_SECONDS)

    @property
    def alone_since(self) -> float:
        """After this time, sessions of other pods show that this pod's should not break."""
        return max(self.lost.first, self.answered_at)


class PodHints:
    """The hints of all trials: at most one per trial, about its current pod."""

    def __init__(self) -> None:
        self._by_trial: dict[Key, PodHint] = {}
        self._worked: dict[str, float] = {}  # by node: when a session with one of its pods last worked
        self._broke: dict[str, PodHint] = {}  # by node: the last forgotten hint of a pod whose sessions broke

    def __len__(self) -> int:
        return len(self._by_trial)

    def of(self, key: Key, uid: str | None) -> PodHint:
        """Return the hint of a trial's pod; the hint of an earlier pod of the trial is dropped."""
        if uid is None:
            return PodHint("")
        hint = self._by_trial.get(key)
        if hint is None or hint.uid != uid:
            hint = self._by_trial[key] = PodHint(uid, key)
        return hint

    def runner_answered(self, hint: PodHint, now: float) -> None:
        """Record that the pod's runner answered in a session: a break after that is not the doing of the pod or its node."""
        hint.answered, hint.answered_at = True, now
        hint.lost_beside_node, hint.lost_beside_any = Breaks(), Breaks()
        self._worked[hint.node] = max(now, self._worked.get(hint.node, 0.0))

    def did_not_break(self, hint: PodHint, now: float) -> None:
        """Record that a session did not break, though what it was opened for may have failed."""
        self.runner_answered(hint, now)
        hint.worked_at, hint.lost, hint.lost_reads = now, Breaks(), 0

    def worked(self, hint: PodHint, now: float) -> None:
        """Record that a session did what it was opened for."""
        self.did_not_break(hint, now)
        hint.failed_reads, hint.error = 0, ""

    def session_lost(self, hint: PodHint, error: str, now: float) -> None:
        """Record that a session broke, for which the pod's containers or the infrastructure may be the cause."""
        hint.lost_reads += hint.read_at_deadline
        hint.read_at_deadline, hint.error = False, error
        hint.lost.add(now)
        if not hint.answered and self._node_worked(hint):
            hint.lost_beside_node.add(now)
        if not hint.answered and self._any_worked(hint):
            hint.lost_beside_any.add(now)

    def breaks_sessions(self, hint: PodHint) -> bool:
        """Return whether so many sessions broke after the deadline, for so long, that there is no further one."""
        return hint.lost_reads >= _MAX_LOST and hint.lost.lasted(_LOST_SECONDS) and self._is_conclusive(hint)

    def is_unresponsive(self, hint: PodHint) -> bool:
        """Return whether sessions have broken for so long that the pod is not waited for any more."""
        return hint.lost.lasted(_UNRESPONSIVE_SECONDS if hint.breaks_alone else _LONGEST_SECONDS) and self._is_conclusive(hint)

    def _is_conclusive(self, hint: PodHint) -> bool:
        """Return whether the pod had its chance after what broke all sessions was over: enough of its sessions broke after one with
        another pod worked, if one did."""
        node = not self._node_worked(hint) or hint.lost_beside_node.lasted(_LOST_SECONDS)
        return hint.answered or (node and (not self._any_worked(hint) or hint.breaks_alone))

    def _node_worked(self, hint: PodHint) -> bool:
        """Return whether a session with another pod of the node worked since the pod's break. (With this pod, none did.)"""
        return self._worked.get(hint.node, 0.0) > hint.alone_since

    def _any_worked(self, hint: PodHint) -> bool:
        return any(at > hint.alone_since for at in self._worked.values())

    def node_works(self, hint: PodHint) -> bool | None:
        """Return whether the pod's node works: True if enough sessions with the pod broke since one with another pod worked; False
        if those with other pods break, too; None if nothing is known of the others. A pod whose sessions broke already when one
        with this pod still worked shows nothing about the node: two agents that break theirs must not excuse each other."""
        if hint.lost_beside_node.lasted(_LOST_SECONDS):
            return True
        pods = [each for each in self._by_trial.values() if each is not hint and each.node == hint.node]
        if (ended := self._broke.get(hint.node)) is not None and ended.trial != hint.trial:
            pods.append(ended)
        return False if any(each.lost.count and each.lost.first >= hint.worked_at for each in pods) else None

    def forget(self, key: Key) -> None:
        """Drop the hint of a trial that does not exist any more or needs its pod no longer. What its sessions showed of its node
        stays known: the node's other pods are judged by it."""
        hint = self._by_trial.pop(key, None)
        if hint is not None and hint.lost.count:
            self._broke[hint.node] = hint

    def clear(self) -> None:
        """Drop all hints, for example after a restore of the API server's store, which makes them unreliable."""
        self._by_trial.clear()
        self._worked.clear()
        self._broke.clear()
