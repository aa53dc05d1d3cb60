"""What a reconcile returns: when to reconcile the object again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Requeue:
    """Reconcile again after ``after`` seconds, or at an earlier event; None: at the next event only."""

    after: float | None


@dataclass(frozen=True)
class Continue:
    """Decide again at once, in the same reconcile, because the observed state has changed."""


Result = Requeue | Continue

AT_NEXT_EVENT: Final = Requeue(None)
CONTINUE: Final = Continue()


def earliest(seconds: Iterable[float | None]) -> Requeue:
    """Return a requeue after the shortest of these times in seconds; None stands for no time."""
    return Requeue(min((each for each in seconds if each is not None), default=None))
