"""Kubernetes Events of a sweep."""

from __future__ import annotations

from multistep.api.conditions import holds
from multistep.api.sweep import SweepStatus
from multistep.reconcile.events import Transition


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
