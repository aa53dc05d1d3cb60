"""An adaptive concurrency limit (AIMD, as in TCP): refusals by a server lower the limit, successes raise it again."""

from __future__ import annotations


class AdaptiveLimit:
    """A limit between 1 and ``most``, its initial value. A refusal halves it; N successes at a limit of N raise it by one."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._value = float(most)

    @property
    def allowed(self) -> int:
        """The current limit."""
        return int(self._value)

    def succeeded(self, times: int = 1) -> None:
        """Raise the limit after this number of successes."""
        self._value = min(float(self._most), self._value + times / self._value)

    def refused(self) -> bool:
        """Halve the limit. Return False if it is 1 already, so that it cannot be lowered.

        Call it only if the refused work started after the last reduction: work that started earlier was under a higher limit.
        """
        if self._value <= 1.0:
            return False
        self._value = max(1.0, self._value / 2.0)
        return True
