"""Reads the conditions of a trial or of a sweep."""

from __future__ import annotations

from typing import Protocol

from multistep.api.trial.status import Condition


class HasConditions(Protocol):
    """A status that has conditions."""

    conditions: list[Condition]


def holds(status: HasConditions, type_: str) -> Condition | None:
    """Return the condition of this type if its status is True, else None."""
    return next((each for each in status.conditions if each.type == type_ and each.status == "True"), None)


def is_finished(status: HasConditions) -> bool:
    """Report whether the trial or sweep is finished: Complete or Failed."""
    return bool(holds(status, "Complete") or holds(status, "Failed"))
