"""Finds the attempt that ran each step. An attempt that resumes from a checkpoint also lists the steps before it ("kept steps"),
which an earlier attempt or another trial ran."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, repeat
from typing import Final, TypeVar

ANOTHER_TRIAL: Final = 0
"""Attempt number of the steps that another trial ran; the trial's own attempts start at 1."""
_Step = TypeVar("_Step")


def with_runner(attempt: int, kept: Sequence[int], steps: Iterable[_Step]) -> list[tuple[int, _Step]]:
    """Return the steps that an attempt lists, each with the number of the attempt that ran it. kept: for each of the first steps,
    which this attempt did not run itself, the number of the attempt that ran it (ResumeStatus.attempts)."""
    return list(zip(chain(kept, repeat(attempt)), steps, strict=False))


def by_runner(listed: Mapping[int, Iterable[tuple[int, _Step]]]) -> dict[int, list[_Step]]:
    """Return the steps that each of the trial's attempts ran. listed: the steps of each attempt, as ``with_runner`` returns them.

    If several attempts list a step, the result has the step as the last of them lists it. The list of the attempt that ran the
    step may show it as unfinished (the pod was lost before the status showed the step's end) or lack it (the status was too large).
    """
    found: dict[int, dict[int, _Step]] = {attempt: {} for attempt in listed}
    for steps in listed.values():
        for index, (runner, step) in enumerate(steps):
            found.setdefault(runner, {})[index] = step
    own = {attempt: steps for attempt, steps in found.items() if attempt != ANOTHER_TRIAL or attempt in listed}
    return {attempt: list(steps.values()) for attempt, steps in own.items()}
