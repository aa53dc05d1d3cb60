"""Means, pass@k and differences, with confidence intervals. docs/statistics.md has the formulas and their sources.

The task is the unit of all of it: trials of one task resemble each other, so they are first made one number per task (the mean
of those that count), and tasks are then taken as a sample of the tasks that there could be. So every task weighs the same,
however many of its trials were lost, and the intervals are clustered by task.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import comb
from statistics import fmean

from scipy import stats

CONFIDENCE = 0.95
FEWEST = 6  # tasks, below which no difference can be told from chance

_ALIKE = 1e-12


@dataclass(frozen=True)
class Estimate:
    """A mean over tasks. low, high: its interval, None where the data tell none (a single task).

    tasks, trials: how many it rests on.
    """

    value: float
    low: float | None
    high: float | None
    tasks: int
    trials: int


@dataclass(frozen=True)
class Difference:
    """First minus second, over the tasks that both have. p: how likely chance alone makes one as large; None: one task.

    An estimate whose tasks all differ by the same has no interval.
    """

    estimate: Estimate
    p: float | None

    @property
    def is_real(self) -> bool:
        """Whether chance alone would hardly make such a difference."""
        return is_rare(self.p)


def is_rare(p: float | None) -> bool:
    """Whether chance alone would hardly make it."""
    return p is not None and p < 1 - CONFIDENCE


def mean_reward(rewards: Mapping[str, Sequence[float]]) -> Estimate | None:
    """The mean of the tasks' mean rewards. rewards: of the trials that count, by task. None: there is not one."""
    means = {task: fmean(found) for task, found in rewards.items() if found}
    return _or_exact(_estimate(means, sum(map(len, rewards.values()))))


def pass_at(k: int, passed: Mapping[str, Sequence[bool]]) -> Estimate | None:
    """The chance that at least one of k trials of a task passes: unbiased, of the tasks that have k trials or more.

    None: no task has. Source: Chen et al., Evaluating Large Language Models Trained on Code, 2021, equation 1.
    """
    enough = {task: found for task, found in passed.items() if len(found) >= k}
    chances = {task: 1 - comb(len(found) - sum(found), k) / comb(len(found), k) for task, found in enough.items()}
    return _within(0.0, 1.0, _or_exact(_estimate(chances, sum(map(len, enough.values())))))


def difference(first: Mapping[str, Sequence[float]], second: Mapping[str, Sequence[float]]) -> Difference | None:
    """How much the first is better, paired by task: what is hard for both then cancels out. None: they share no task."""
    shared = [task for task, found in first.items() if found and second.get(task)]
    deltas = {task: fmean(first[task]) - fmean(second[task]) for task in shared}
    estimate = _estimate(deltas, sum(len(first[task]) + len(second[task]) for task in shared))
    if estimate is None:
        return None
    return Difference(estimate, _p_of(list(deltas.values())))


def holm(ps: Sequence[float]) -> list[float]:
    """Each p, raised so that the chance of even one false find among them all stays what it is for one.

    Source: Holm, A Simple Sequentially Rejective Multiple Test Procedure, 1979.
    """
    raised, least = [0.0] * len(ps), 0.0
    for rank, index in enumerate(sorted(range(len(ps)), key=lambda each: ps[each])):
        raised[index] = least = max(least, min(1.0, (len(ps) - rank) * ps[index]))
    return raised


def ks(most: int) -> list[int]:
    """The ks that are shown of pass@k: 1, 2, 4, 8, ... and the most."""
    powers = [1 << power for power in range(most.bit_length())]
    return sorted({*powers, most}) if most else []


def _p_of(deltas: Sequence[float]) -> float | None:
    """Of Student's paired test, but never less than what the signs of so few tasks can tell (Fisher's randomisation test).

    With 5 tasks even the same sign everywhere comes by chance once in 16 times, however little the tasks differ in size.
    """
    if len(deltas) < 2:
        return None
    if _are_equal(deltas):
        return float(2.0 ** (1 - len(deltas))) if abs(deltas[0]) > _ALIKE else 1.0
    return max(float(stats.ttest_1samp(deltas, 0.0).pvalue), 2.0 ** (1 - len(deltas)))


def _estimate(numbers: Mapping[str, float], trials: int) -> Estimate | None:
    """The numbers' mean with Student's interval for it; none without any spread."""
    if not numbers:
        return None
    values, mean = list(numbers.values()), fmean(numbers.values())
    if len(values) < 2 or _are_equal(values):
        return Estimate(mean, None, None, len(values), trials)
    interval = stats.ttest_1samp(values, 0.0).confidence_interval(CONFIDENCE)
    return Estimate(mean, float(interval.low), float(interval.high), len(values), trials)


def _are_equal(values: Sequence[float]) -> bool:
    return max(values) - min(values) <= _ALIKE


def _or_exact(estimate: Estimate | None) -> Estimate | None:
    """Of tasks that are all 0 or all 1 the exact binomial interval (Clopper and Pearson, 1934), as there is no spread."""
    if estimate is None or estimate.low is not None or estimate.tasks < 2 or estimate.value not in (0, 1):
        return estimate
    interval = stats.binomtest(estimate.tasks if estimate.value else 0, estimate.tasks).proportion_ci(CONFIDENCE, method="exact")
    return replace(estimate, low=float(interval.low), high=float(interval.high))


def _within(lowest: float, highest: float, estimate: Estimate | None) -> Estimate | None:
    """The same with its interval cut to what is possible."""
    if estimate is None or estimate.low is None or estimate.high is None:
        return estimate
    return replace(estimate, low=max(lowest, estimate.low), high=min(highest, estimate.high))
