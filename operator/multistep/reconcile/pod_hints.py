"""What is remembered of the pods of trials between two reconciles. It only saves work: a new leader starts without."""

from __future__ import annotations

from dataclasses import dataclass

from multistep.engine.decisions import ProtocolViolation
from multistep.reconcile.concurrency_limit import Key

UNREADY_SECONDS = 5.0
MAX_UNREADY_SECONDS = 60.0


@dataclass
class PodHint:
    """Of the pod with this UID. quiet_until: no exec session is needed before this time (seconds since the epoch) unless the pod
    changes, as a phase runs in it; violation: as in Situation.

    unready_until: the same for a pod that is not ready though no result waits; empty_sessions: sessions in a row without one."""

    uid: str
    quiet_until: float = 0.0
    violation: ProtocolViolation | None = None
    unready_until: float = 0.0
    empty_sessions: int = 0

    def phase_runs(self, now: float, poll: float, *, ready: bool, found_nothing: bool) -> float:
        """A session left a running phase. Returns the seconds after which the pod is to be reconciled; poll: at the latest.

        A pod that is not ready is asked again soon: somebody may flood the port of its probe, and then no event reports the
        result. found_nothing: the session, opened because the pod was not ready, found no result; each one doubles the pause.
        """
        self.quiet_until = now + poll
        self.empty_sessions = self.empty_sessions + 1 if found_nothing else 0
        pause = min(poll, MAX_UNREADY_SECONDS, UNREADY_SECONDS * 2.0**self.empty_sessions)
        self.unready_until = now + pause if found_nothing else 0.0
        return poll if ready else pause


class PodHints:
    """At most one hint per trial, of its current pod."""

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

    def forget(self, key: Key) -> None:
        """Drop the hint of a trial that does not exist any more or needs its pod no longer."""
        self._by_trial.pop(key, None)

    def clear(self) -> None:
        """Drop all hints, as none of them is reliable any more."""
        self._by_trial.clear()
