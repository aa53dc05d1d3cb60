"""Exponential back-off: how long to wait before a retry."""

from __future__ import annotations

import random
from dataclasses import dataclass

_MAX_DOUBLINGS = 30  # avoids a float overflow; a pause reaches ``Backoff.last`` after far fewer doublings


@dataclass(frozen=True)
class Backoff:
    """Pauses that start at ``first`` seconds and double with each failure, up to ``last`` seconds.

    jitter: maximum random fraction added to a pause, so that work that failed together is not retried together.
    """

    first: float
    last: float
    jitter: float = 0.0

    def seconds(self, failures: int) -> float:
        """Return the pause in seconds. failures: number of failures in a row, at least 1."""
        pause = min(self.last, self.first * 2.0 ** min(max(failures, 1) - 1, _MAX_DOUBLINGS))
        return pause * random.uniform(1.0, 1.0 + self.jitter)
