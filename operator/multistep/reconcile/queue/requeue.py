"""The results of a reconcile: when to reconcile the object again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Requeue:
    """A result: reconcile the object again after ``after`` seconds, or at an earlier event. None: at the next event only."""

    after: float | None


@dataclass(frozen=True)
class Continue:
    """A result: decide again at once, in the same reconcile, because the observed state has changed."""


Result = Requeue | Continue

SOON_SECONDS: Final = 0.5  # shortest delay of a requeue whose cause needs a moment to pass
AT_NEXT_EVENT: Final = Requeue(None)
CONTINUE: Final = Continue()


def earliest(seconds: Iterable[float | None]) -> Requeue:
    """Return a requeue after the shortest of these delays in seconds. None entries are ignored."""
    return Requeue(min((each for each in seconds if each is not None), default=None))
