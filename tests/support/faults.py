"""Faults at every point where the operator calls the outside world, numbered so that a test can try each of them.

first = Faults(); run(first)                      # counts the points
for n in range(1, len(first.trace) + 1):
    faults = Faults().fail(n, Killed()); run(faults); run again without faults; compare
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Self


class Killed(BaseException):
    """The operator's process died at this point."""


class Faults:
    """Injects planned faults at points. trace: names of the points passed so far, such as ``create_pod before``.

    dead: whether the operator was killed; then its calls raise Killed. at_point: callback at each point, before any fault.
    """

    def __init__(self) -> None:
        self.trace: list[str] = []
        self.dead = False
        self.at_point: Callable[[], None] = lambda: None
        self._planned: dict[int, BaseException | Callable[[], None]] = {}

    def fail(self, at: int, what: BaseException | Callable[[], None]) -> Self:
        """Raise an error, or call a function, at the at-th point (from 1)."""
        self._planned[at] = what
        return self

    def point(self, name: str) -> None:
        """Pass a point; the fakes call this."""
        if self.dead:
            raise Killed
        self.trace.append(name)
        self.at_point()
        what = self._planned.pop(len(self.trace), None)
        if isinstance(what, BaseException):
            self.dead = isinstance(what, Killed)
            raise what
        if what is not None:
            what()
