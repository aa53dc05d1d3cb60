"""Exponential back-off: how long to wait before a retry."""

from __future__ import annotations

import random
from dataclasses import dataclass

_MAX_DOUBLINGS = 30  # avoids an overflow; ``last`` is reached long before


@dataclass(frozen=True)
class Backoff:
    """Pauses that start at ``first`` seconds and double with each failure, up to ``last`` seconds.

    jitter: fraction by which a pause may be longer, so that work that failed at the same time is retried at different times.
    """

    first: float
    last: float
    jitter: float = 0.0

    def seconds(self, failures: int) -> float:
        """Return the pause after this many failures in a row, from 1."""
        pause = min(self.last, self.first * 2.0 ** min(max(failures, 1) - 1, _MAX_DOUBLINGS))
        return pause * random.uniform(1.0, 1.0 + self.jitter)
