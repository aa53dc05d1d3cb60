"""Which attempt ran which step: later attempts may keep steps of earlier ones, or of another trial."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, repeat
from typing import Final, TypeVar

ANOTHER_TRIAL: Final = 0
"""Attempt number of the steps that a trial keeps from another trial; the trial's own attempts start at 1."""
_Step = TypeVar("_Step")


def with_runner(attempt: int, kept: Sequence[int], steps: Iterable[_Step]) -> list[tuple[int, _Step]]:
    """Return the steps of an attempt, each with the number of the attempt that ran it. kept: the attempts that ran the kept steps,
    which come first (ResumeStatus.attempts)."""
    return list(zip(chain(kept, repeat(attempt)), steps, strict=False))


def by_runner(listed: Mapping[int, Iterable[tuple[int, _Step]]]) -> dict[int, list[_Step]]:
    """Return the steps that each of the trial's attempts ran. listed: the steps of each attempt, as ``with_runner`` returns them.

    A kept step is taken from the list of the last attempt that kept it. In the list of the attempt that ran it, the step may be
    unfinished, if the pod was lost before the status showed the step's end, or missing, if the status became too large.
    """
    found: dict[int, dict[int, _Step]] = {attempt: {} for attempt in listed}
    for steps in listed.values():
        for index, (runner, step) in enumerate(steps):
            found.setdefault(runner, {})[index] = step
    own = {attempt: steps for attempt, steps in found.items() if attempt != ANOTHER_TRIAL or attempt in listed}
    return {attempt: list(steps.values()) for attempt, steps in own.items()}
