"""What is remembered of the pods of trials between two reconciles. It only saves work: a new leader starts without."""

from __future__ import annotations

from dataclasses import dataclass

from ..engine.decisions import Nonsense
from .turns import Key


@dataclass
class PodHint:
    """Of the pod with this UID. quiet_until: no exec session is needed before this time (seconds since the epoch) unless the pod
    changes, as a phase runs in it; nonsense: as in Situation."""

    uid: str
    quiet_until: float = 0.0
    nonsense: Nonsense | None = None


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
        """The trial does not exist any more, or it needs its pod no more."""
        self._by_trial.pop(key, None)

    def clear(self) -> None:
        """Nothing that was seen before can be relied on."""
        self._by_trial.clear()
