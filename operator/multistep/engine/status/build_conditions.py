"""Builds a trial's or sweep's conditions: Complete, Failed, Suspended as in a Job; Ready, Reconciling, Stalled as in kstatus."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final, Literal

from multistep.api.trial.status import Condition
from multistep.api.trial.status_values import FINISHED_PHASES, Phase

LATEST = datetime(9999, 12, 31, tzinfo=UTC).timestamp()

_WHEN_FALSE: Final = {
    "Reconciling": ("Finished", ""),
    "Stalled": ("NotStalled", ""),
    "Complete": ("NotComplete", ""),
    "Failed": ("NotFailed", ""),
    "Suspended": ("NotSuspended", ""),
}


def conditions(
    former: Sequence[Condition],
    phase: Phase,
    reason: str,
    message: str,
    generation: int,
    now: float,
    *,
    suspended: bool,
    stalled: bool = False,
) -> list[Condition]:
    """Return the conditions for a phase. Ready, and each condition that is True, has the given reason and message.

    former: previous conditions, for the transition times; stalled: whether an unfinished object needs a user's help.
    """
    holds = {
        "Ready": phase == "Complete",
        "Complete": phase == "Complete",
        "Failed": phase == "Failed",
        "Reconciling": phase not in FINISHED_PHASES,
        "Stalled": phase == "Failed" or stalled,
        "Suspended": suspended,
    }
    since: dict[tuple[str, str], datetime] = {(each.type, each.status): each.last_transition_time for each in former}
    found = []
    for type_, is_true in holds.items():
        state: Literal["True", "False"] = "True" if is_true else "False"
        own_reason, own_message = (reason, message) if is_true or type_ == "Ready" else _WHEN_FALSE[type_]
        transition = since.get((type_, state), time(now))
        found.append(
            Condition(
                type=type_,
                status=state,
                observed_generation=generation,
                last_transition_time=transition,
                reason=own_reason,
                message=own_message,
            )
        )
    return found


def time(seconds: float) -> datetime:
    """Return a time in whole seconds, as Kubernetes writes it. The range is limited, because a runner may report any number."""
    return datetime.fromtimestamp(math.floor(min(max(seconds, 0.0), LATEST)), UTC)
