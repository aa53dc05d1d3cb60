"""Hints about trials' pods, kept in memory between two reconciles. They only save work: a new leader starts without them."""

from __future__ import annotations

from dataclasses import dataclass

from multistep.backoff import Backoff
from multistep.engine.lifecycle.decisions import ProtocolViolation
from multistep.reconcile.admission.concurrency_limit import Key

_UNREADY = Backoff(first=5.0, last=60.0)
# Maximum numbers of reads after the deadline: the trial must end even if a proxy refuses all sessions, or its pod breaks them.
_MAX_FAILED = 20
_MAX_LOST = 5
_LOST_SECONDS = 90.0  # minimum time in which they break: what connects the API server with nodes restarts faster


@dataclass
class PodHint:
    """A hint about the pod with this UID. Times are seconds since the epoch.

    quiet_until: until this time a phase is assumed to run, so the pod needs an exec session only if it becomes unready;
    unready_until: until this time an unready pod needs no session either, because the last session found no result;
    empty_sessions: number of sessions in a row that found no result; violation: protocol violations of the pod's runner;
    read_at_deadline: whether the pod was read after the trial's deadline; failed_reads, lost_reads: number of reads after the
    deadline that failed for reasons outside the pod, and whose session broke, for which the pod's containers may be the cause;
    node: the pod's node; worked_at: end of the last session that did not break; lost_since: when the first session since broke,
    None if none did; error: that of the last session, "" if it worked."""

    uid: str
    quiet_until: float = 0.0
    violation: ProtocolViolation | None = None
    unready_until: float = 0.0
    empty_sessions: int = 0
    read_at_deadline: bool = False
    failed_reads: int = 0
    lost_reads: int = 0
    node: str = ""
    worked_at: float = 0.0
    lost_since: float | None = None
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

    def worked(self, now: float) -> None:
        """Record that a session did not break."""
        self.worked_at, self.lost_since, self.error = now, None, ""
        self.failed_reads = self.lost_reads = 0

    def was_not_read(self, error: str) -> None:
        """Record that a read failed for a reason outside the pod."""
        self.failed_reads += self.read_at_deadline
        self.read_at_deadline, self.error = False, error

    def session_lost(self, error: str, now: float) -> None:
        """Record that a session broke, for which the pod's containers or the infrastructure may be the cause."""
        self.lost_reads += self.read_at_deadline
        self.read_at_deadline, self.error = False, error
        self.lost_since = now if self.lost_since is None else self.lost_since

    @property
    def cannot_be_read(self) -> bool:
        """Return whether so many reads after the deadline failed for reasons outside the pod that there is no further one."""
        return self.failed_reads > _MAX_FAILED

    def breaks_sessions(self, now: float) -> bool:
        """Return whether so many sessions broke after the deadline, for so long, that there is no further one."""
        return self.lost_reads >= _MAX_LOST and self.lost_since is not None and now - self.lost_since >= _LOST_SECONDS


class PodHints:
    """The hints of all trials: at most one per trial, about its current pod."""

    def __init__(self) -> None:
        self._by_trial: dict[Key, PodHint] = {}

    def __len__(self) -> int:
        return len(self._by_trial)

    def of(self, key: Key, uid: str | None) -> PodHint:
        """Return the hint of a trial's pod; the hint of an earlier pod of the trial is dropped."""
        if uid is None:
            return PodHint("")
        hint = self._by_trial.get(key)
        if hint is None or hint.uid != uid:
            hint = self._by_trial[key] = PodHint(uid)
        return hint

    def node_works(self, hint: PodHint) -> bool | None:
        """Return whether, since the pod's sessions break, one with a pod of another trial on the same node worked; None if nothing
        is known of the others."""
        others = [each for each in self._by_trial.values() if each is not hint and each.node == hint.node]
        if hint.lost_since is not None and any(each.worked_at > hint.lost_since for each in others):
            return True
        return False if any(each.lost_since is not None for each in others) else None

    def forget(self, key: Key) -> None:
        """Drop the hint of a trial that does not exist any more or needs its pod no longer."""
        self._by_trial.pop(key, None)

    def clear(self) -> None:
        """Drop all hints, for example after a restore of the API server's store, which makes them unreliable."""
        self._by_trial.clear()
