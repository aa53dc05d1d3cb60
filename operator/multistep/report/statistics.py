"""Means, pass@k and differences, with confidence intervals. docs/statistics.md has the formulas and their sources.

The task is the unit of all of it: trials of one task resemble each other, so they are first made one number per task (the mean
of those that count), and tasks are then taken as a sample of the tasks that there could be. So every task weighs the same,
however many of its trials were lost, and the intervals are clustered by task.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import comb
from statistics import fmean

from scipy import stats

CONFIDENCE = 0.95


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
    """First minus second, over the tasks that both have. p: how likely chance alone makes one as large; None: one task."""

    estimate: Estimate
    p: float | None

    @property
    def is_real(self) -> bool:
        """Whether chance alone would hardly make such a difference."""
        return self.p is not None and self.p < 1 - CONFIDENCE


def mean_reward(rewards: Mapping[str, Sequence[float]]) -> Estimate | None:
    """The mean of the tasks' mean rewards. rewards: of the trials that count, by task. None: there is not one."""
    means = {task: fmean(found) for task, found in rewards.items() if found}
    return _estimate(means, sum(map(len, rewards.values())))


def pass_at(k: int, passed: Mapping[str, Sequence[bool]]) -> Estimate | None:
    """The chance that at least one of k trials of a task passes: unbiased, of the tasks that have k trials or more.

    None: no task has. Source: Chen et al., Evaluating Large Language Models Trained on Code, 2021, equation 1.
    """
    enough = {task: found for task, found in passed.items() if len(found) >= k}
    chances = {task: 1 - comb(len(found) - sum(found), k) / comb(len(found), k) for task, found in enough.items()}
    return _within(0.0, 1.0, _estimate(chances, sum(map(len, enough.values()))))


def difference(first: Mapping[str, Sequence[float]], second: Mapping[str, Sequence[float]]) -> Difference | None:
    """How much the first is better, paired by task: what is hard for both then cancels out. None: they share no task."""
    shared = [task for task, found in first.items() if found and second.get(task)]
    deltas = {task: fmean(first[task]) - fmean(second[task]) for task in shared}
    estimate = _estimate(deltas, sum(len(first[task]) + len(second[task]) for task in shared))
    if estimate is None:
        return None
    return Difference(estimate, _p_of(list(deltas.values())))


def _p_of(deltas: Sequence[float]) -> float | None:
    """Student's paired test; where all differ by the same, the sign test, as there is no spread to judge by."""
    if len(deltas) < 2:
        return None
    if not _are_equal(deltas):
        return float(stats.ttest_1samp(deltas, 0.0).pvalue)
    return float(stats.binomtest(len(deltas), len(deltas)).pvalue) if deltas[0] else 1.0


def _estimate(numbers: Mapping[str, float], trials: int) -> Estimate | None:
    """The numbers' mean with Student's interval for it."""
    if not numbers:
        return None
    values, mean = list(numbers.values()), fmean(numbers.values())
    if len(values) < 2:
        return Estimate(mean, None, None, len(values), trials)
    if _are_equal(values):
        return Estimate(mean, *_of_equal(mean, len(values)), len(values), trials)
    interval = stats.ttest_1samp(values, 0.0).confidence_interval(CONFIDENCE)
    return Estimate(mean, float(interval.low), float(interval.high), len(values), trials)


def _are_equal(values: Sequence[float]) -> bool:
    return max(values) - min(values) <= 1e-12


def _of_equal(value: float, tasks: int) -> tuple[float | None, float | None]:
    """Tasks without any spread: of all 0 or all 1, the exact binomial interval (Clopper and Pearson, 1934); else nothing."""
    if value not in (0, 1):
        return None, None
    interval = stats.binomtest(tasks if value else 0, tasks).proportion_ci(CONFIDENCE, method="exact")
    return float(interval.low), float(interval.high)


def _within(lowest: float, highest: float, estimate: Estimate | None) -> Estimate | None:
    """The same with its interval cut to what is possible."""
    if estimate is None or estimate.low is None or estimate.high is None:
        return estimate
    return Estimate(estimate.value, max(lowest, estimate.low), min(highest, estimate.high), estimate.tasks, estimate.trials)
