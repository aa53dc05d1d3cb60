"""Decides which limit of bytes forbids a token record, and explains why a step's records are incomplete. All functions are pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

MIN_FREE: Final = 0.1
"""While the gateway's volume has a smaller free share, nothing is recorded, so that the ledger can still be written. Otherwise the
agents of a few steps could fill the volume, and the attempts of all agents would be lost."""


@dataclass(frozen=True)
class RecordLimits:
    """Maximum bytes of token records."""

    step: int
    sweep: int
    """Of all steps of a sweep that ended in the last 30 days or still run."""


def exceeded(limits: RecordLimits, *, step: int, sweep: int, full: bool) -> str:
    """Return the limit that forbids a record: Volume, Step or Sweep, or "" if none does.

    ``step`` and ``sweep`` are the bytes that they would have with the record, and ``sweep`` is 0 for a trial of no sweep. ``full``
    tells whether the volume is almost full.
    """
    if full:
        return "Volume"
    if step > limits.step:
        return "Step"
    return "Sweep" if sweep > limits.sweep else ""


def why_incomplete(missing: Sequence[str], dropped: Mapping[str, int], limits: RecordLimits) -> str:
    """Return why records of a step are missing, with the limit, its value and what to change; "" if none are missing.

    The text is short, because a status shows 128 bytes of it. ``missing`` has the ids of requests without a record. ``dropped`` is
    the number of records that each limit forbade.
    """
    causes = {
        "Step": f"exceeded gateway.settings.captureStepBytes, {limits.step}: raise it",
        "Sweep": f"exceeded gateway.settings.captureSweepBytes, {limits.sweep}: raise it or start a new sweep",
        "Volume": f"found less than {MIN_FREE:.0%} of the gateway's volume free: raise gateway.persistence.size",
    }
    found = [f"{_plural(dropped[name], 'record')} {cause}" for name, cause in causes.items() if dropped.get(name)]
    if missing:
        found.append(f"{_plural(len(missing), 'request')} without a record, such as {missing[0]}: see the gateway's log")
    return "; ".join(found)


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count > 1)}"
