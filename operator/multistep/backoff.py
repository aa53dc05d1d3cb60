"""Computes the pause before a retry, with exponential back-off."""

from __future__ import annotations

import random
from dataclasses import dataclass

_MAX_DOUBLINGS = 30  # avoids a float overflow, and is more than a pause needs to reach ``Backoff.last``


@dataclass(frozen=True)
class Backoff:
    """Pauses that start at ``first`` seconds and double with each failure, up to ``last`` seconds."""

    first: float
    last: float
    jitter: float = 0.0
    """Maximum random fraction that is added to a pause, so that work that failed together is not retried together."""

    def seconds(self, failures: int) -> float:
        """Return the pause in seconds after this number of failures in a row, at least 1."""
        pause = min(self.last, self.first * 2.0 ** min(max(failures, 1) - 1, _MAX_DOUBLINGS))
        return pause * random.uniform(1.0, 1.0 + self.jitter)
