"""Kubernetes Events of a sweep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from multistep.api.common.plural import plural
from multistep.api.sweep.sweep import SweepStatus
from multistep.api.trial.conditions import holds
from multistep.engine.status.status_size import bounded
from multistep.reconcile.trial.emit_trial_events import Transition

_SHOWN: Final = 3


def transitions(old: SweepStatus, new: SweepStatus) -> list[Transition]:
    """Return the transitions between two statuses of a sweep, in order."""
    found = []
    if new.start_time and not old.start_time:
        found.append(Transition("SweepStarted", _message(new)))
    if old.phase == "Suspended" and new.phase in ("Pending", "Running"):
        found.append(Transition("Resumed", _message(new)))
    changed = _why(new) != _why(old)
    if new.phase in ("Suspended", "Complete") and changed:
        found.append(Transition(_why(new)[1], _message(new)))
    if changed and (new.phase in ("Halting", "Failed") or holds(new, "Stalled")):
        found.append(Transition(_why(new)[1], _message(new), "Warning"))
    return found


def _why(status: SweepStatus) -> tuple[str | None, str]:
    return status.phase, status.conditions[0].reason if status.conditions else ""


def _message(status: SweepStatus) -> str:
    return status.conditions[0].message


def foreign_trials(names: Sequence[str]) -> Transition:
    """Return a warning about trials that claim to be the sweep's, but were not created by the operator."""
    shown = f"{', '.join(names[:_SHOWN])}{' ...' if len(names) > _SHOWN else ''}"
    text = (
        f"{plural(len(names), 'trial claims', 'trials claim')} to be of this sweep, which did not create it ({shown}); not counted"
    )
    return Transition("ForeignTrials", bounded(text), "Warning")
