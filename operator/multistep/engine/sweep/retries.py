"""Retries of a sweep's trials: selects the trial that counts for each trial number in the sweep. Pure.

spec.retries lists the numbers of the trials to run again, in the order in which the retries are created; a number may occur more
than once. For each number the first trial with a score counts, so a retry never replaces a score. If no trial has a score, the
newest trial counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Retry:
    """A retry of one trial of a sweep. number: the number of that trial in the sweep; count: index among its retries, from 1."""

    number: int
    count: int


def retries_of(numbers: Iterable[int], total: int) -> Sequence[Retry]:
    """Return the retries that spec.retries requests, in order, without numbers that the sweep does not have.

    total: number of the sweep's trials without retries.
    """
    counts = Counter[int]()
    found = []
    for number in numbers:
        if number < total:
            counts[number] += 1
            found.append(Retry(number, counts[number]))
    return found


def unknown(numbers: Iterable[int], total: int) -> Sequence[int]:
    """Return the numbers in spec.retries that the sweep does not have."""
    return [number for number in numbers if number >= total]


def current(trials: Iterable[tuple[int, int, T]], is_scored: Callable[[T], bool]) -> dict[int, T]:
    """Return, by number, the trial that counts: the first scored one, or the newest if none is scored. trials: tuples of the number
    that a trial counts for, the trial's own number, and the trial."""
    found: dict[int, T] = {}
    for number, _, trial in sorted(trials, key=lambda each: each[1]):
        if number not in found or not is_scored(found[number]):
            found[number] = trial
    return found
