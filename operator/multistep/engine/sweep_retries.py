"""Retries of a sweep's trials: which trial counts for each number. Pure.

spec.retries names the numbers to run again, in the order in which the retries are created; a number may occur more than once. A
number counts with its first trial that has a score, so a retry never replaces a score; without one it counts with its newest trial.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Retry:
    """A further trial of a number. count: from 1, among the retries of this number."""

    number: int
    count: int


def retries_of(numbers: Iterable[int], total: int) -> Sequence[Retry]:
    """Return the retries that spec.retries asks for, in order, without numbers that the sweep does not have.

    total: how many numbers it has.
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
    """Return the trial that counts for each number. trials: the number that a trial counts for, its own number, the trial."""
    found: dict[int, T] = {}
    for number, _, trial in sorted(trials, key=lambda each: each[1]):
        if number not in found or not is_scored(found[number]):
            found[number] = trial
    return found
