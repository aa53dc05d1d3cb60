"""Faults at every point where the operator touches the world, counted so that a test can try them all in turn.

first = Faults(); run(first)                      # counts the points
for n in range(1, len(first.trace) + 1):
    faults = Faults().fail(n, Killed()); run(faults); run again without faults; compare
"""

from __future__ import annotations

from typing import Self


class Killed(BaseException):
    """The operator's process died here."""


class Faults:
    """trace: the points passed so far, as in ``create_pod before``. dead: an operator was killed, and does nothing any more."""

    def __init__(self) -> None:
        self.trace: list[str] = []
        self.dead = False
        self._planned: dict[int, BaseException] = {}

    def fail(self, at: int, error: BaseException) -> Self:
        """Raise error at the at-th point (from 1)."""
        self._planned[at] = error
        return self

    def point(self, name: str) -> None:
        """Called by the fakes."""
        if self.dead:
            raise Killed
        self.trace.append(name)
        if error := self._planned.pop(len(self.trace), None):
            self.dead = isinstance(error, Killed)
            raise error
