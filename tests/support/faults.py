"""Inject faults where the operator calls the cluster, a runner or the volume. The points are numbered, so that a test can try each.

first = Faults(); run(first)                      # counts the points
for n in range(1, len(first.trace) + 1):
    faults = Faults().fail(n, Killed()); run(faults); run again without faults; compare
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Self


class Killed(BaseException):
    """Raised at a point to simulate that the operator's process dies there."""


class Faults:
    """Injects planned faults at the points. trace: names of the points passed so far, such as ``create_pod before``.

    dead: whether the operator was killed; then its calls raise Killed. at_point: callback at each point, before any fault.
    """

    def __init__(self) -> None:
        self.trace: list[str] = []
        self.dead = False
        self.at_point: Callable[[], None] = lambda: None
        self._planned: dict[int, BaseException | Callable[[], None]] = {}

    def fail(self, at: int, what: BaseException | Callable[[], None]) -> Self:
        """Plan a fault for point number `at` (from 1): the point raises `what`, or calls it if it is a function."""
        self._planned[at] = what
        return self

    def point(self, name: str) -> None:
        """Record a point and inject the fault that is planned for it. The fakes call this."""
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
