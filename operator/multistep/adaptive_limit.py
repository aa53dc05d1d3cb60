"""An adaptive concurrency limit. Refusals by a server lower the limit, and successes raise it again (AIMD, as in TCP)."""

from __future__ import annotations


class AdaptiveLimit:
    """A limit between 1 and ``most``, its initial value. A refusal halves the limit. N successes at a limit of N raise it by
    one."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._value = float(most)

    @property
    def allowed(self) -> int:
        """Return the current limit."""
        return int(self._value)

    def succeeded(self, times: int = 1) -> None:
        """Raise the limit after this number of successes."""
        self._value = min(float(self._most), self._value + times / self._value)

    def refused(self) -> bool:
        """Halve the limit. Return False if it is already 1 and cannot be lowered.

        The caller must ignore refusals of work that started before the last reduction, because a higher limit applied to this work.
        """
        if self._value <= 1.0:
            return False
        self._value = max(1.0, self._value / 2.0)
        return True
