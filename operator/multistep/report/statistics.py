"""Means, pass@k and differences, with confidence intervals. docs/reference/statistics.md has the formulas and their sources.

The task is the unit of analysis: trials of one task are correlated, so they are first averaged per task (over the scored trials),
and the tasks are treated as a sample of possible tasks. So every task has the same weight, however many of its trials are
excluded, and the intervals are clustered by task.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import hypot
from statistics import fmean

from scipy import stats

from multistep.report.pass_at_k import pass_chances, task_means

CONFIDENCE = 0.95

_ALIKE = 1e-12


@dataclass(frozen=True)
class Estimate:
    """A mean over tasks."""

    value: float
    low: float | None
    """Lower bound of the confidence interval; None without an interval, for example with a single task."""
    high: float | None
    """Upper bound of the confidence interval."""
    tasks: int
    """Number of tasks in the sample."""
    trials: int
    """Number of trials in the sample."""


@dataclass(frozen=True)
class Difference:
    """Mean score of a first group of trials minus that of a second one, over the tasks that both groups have.

    If all tasks differ by the same amount, the estimate has no confidence interval.
    """

    estimate: Estimate
    p: float | None
    """Probability that chance causes a difference at least as large; None with one task."""

    @property
    def is_real(self) -> bool:
        """Return whether the difference is significant."""
        return is_significant(self.p)


def is_significant(p: float | None) -> bool:
    """Return whether the p-value is significant."""
    return p is not None and p < 1 - CONFIDENCE


def mean_score(scores: Mapping[str, Sequence[float]]) -> Estimate | None:
    """Return the mean of the tasks' mean scores; None if no trial is scored. scores: the scores of the scored trials, by task.

    The interval is clipped to the range from 0 to 1 unless a score is outside of it.
    """
    estimate = _estimate(task_means(scores), sum(map(len, scores.values())))
    return _within(0.0, 1.0, _or_exact(estimate)) if _are_shares(scores) else estimate


def pass_at(k: int, passed: Mapping[str, Sequence[bool]]) -> Estimate | None:
    """Return an estimate of the probability that at least one of k trials of a task passes.

    passed: by task, whether each trial passed; only tasks with at least k trials count. None if there is no such task.
    """
    estimates = pass_chances(k, passed)
    return _within(0.0, 1.0, _or_exact(_estimate(estimates, sum(len(passed[task]) for task in estimates))))


def task_differences(first: Mapping[str, Sequence[float]], second: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return the mean of the first scores minus that of the second, for each task that has both. first, second: scores by task."""
    shared = [task for task, own in first.items() if own and second.get(task)]
    return {task: fmean(first[task]) - fmean(second[task]) for task in shared}


def paired_difference(first: Mapping[str, Sequence[float]], second: Mapping[str, Sequence[float]]) -> Difference | None:
    """Return the mean of the first scores minus the second, paired by task, so that the tasks' difficulty cancels out.

    first, second: scores by task. None if they share no task.
    """
    deltas = task_differences(first, second)
    estimate = _estimate(deltas, sum(len(first[task]) + len(second[task]) for task in deltas))
    if _are_shares(first) and _are_shares(second):
        estimate = _within(-1.0, 1.0, estimate)
    if estimate is None:
        return None
    if abs(estimate.value) <= _ALIKE:  # differences that cancel out leave a remainder of rounding
        estimate = replace(estimate, value=0.0)
    return Difference(estimate, _p_of(list(deltas.values())))


def difference_of_chances(first: Sequence[bool], second: Sequence[bool]) -> Estimate | None:
    """Return the difference of two chances to pass within one task, the first minus the second; None if a group is empty.

    first, second: whether each trial passed. The interval combines Wilson's intervals of both groups; it needs no variance, so it
    exists for few trials and for groups in which all pass or none does.
    Source: Newcombe, Interval Estimation for the Difference Between Independent Proportions, 1998, method 10.
    """
    if not first or not second:
        return None
    (one, low_one, high_one), (two, low_two, high_two) = _wilson(first), _wilson(second)
    value = one - two
    low, high = hypot(one - low_one, high_two - two), hypot(high_one - one, two - low_two)
    return Estimate(value, value - low, value + high, 1, len(first) + len(second))


def _wilson(passed: Sequence[bool]) -> tuple[float, float, float]:
    """Return the share of trials that passed, and Wilson's interval of the chance."""
    interval = stats.binomtest(sum(passed), len(passed)).proportion_ci(CONFIDENCE, method="wilson")
    return fmean(passed), float(interval.low), float(interval.high)


def holm(ps: Sequence[float]) -> list[float]:
    """Return p-values adjusted for multiple comparisons: the family-wise error rate stays that of a single test.

    Source: Holm, A Simple Sequentially Rejective Multiple Test Procedure, 1979.
    """
    raised, least = [0.0] * len(ps), 0.0
    for rank, index in enumerate(sorted(range(len(ps)), key=lambda position: ps[position])):
        raised[index] = least = max(least, min(1.0, (len(ps) - rank) * ps[index]))
    return raised


def _p_of(deltas: Sequence[float]) -> float | None:
    """Return the p-value of Student's paired test, but at least the minimum of Fisher's randomisation test of the signs.

    This minimum applies because with few tasks chance alone often makes all differences have the same sign: with 5 tasks in 1 of 16
    cases.
    """
    if len(deltas) < 2:
        return None
    if _are_equal(deltas):
        return float(2.0 ** (1 - len(deltas))) if abs(deltas[0]) > _ALIKE else 1.0
    return max(float(stats.ttest_1samp(deltas, 0.0).pvalue), 2.0 ** (1 - len(deltas)))


def _estimate(numbers: Mapping[str, float], trials: int) -> Estimate | None:
    """Return the mean with Student's interval; no interval if all values are equal."""
    if not numbers:
        return None
    values, mean = list(numbers.values()), fmean(numbers.values())
    if len(values) < 2 or _are_equal(values):
        return Estimate(mean, None, None, len(values), trials)
    interval = stats.ttest_1samp(values, 0.0).confidence_interval(CONFIDENCE)
    return Estimate(mean, float(interval.low), float(interval.high), len(values), trials)


def _are_shares(scores: Mapping[str, Sequence[float]]) -> bool:
    return all(0 <= score <= 1 for of_task in scores.values() for score in of_task)


def _are_equal(values: Sequence[float]) -> bool:
    least, most = min(values), max(values)
    return most - least <= _ALIKE * max(1.0, -least, most)  # relative, because the rounding of large values is large


def _or_exact(estimate: Estimate | None) -> Estimate | None:
    """Return the estimate; if the tasks' means are all 0 or all 1, with an exact binomial interval (Clopper and Pearson, 1934)."""
    if estimate is None or estimate.low is not None or estimate.tasks < 2 or estimate.value not in (0, 1):
        return estimate
    interval = stats.binomtest(estimate.tasks if estimate.value else 0, estimate.tasks).proportion_ci(CONFIDENCE, method="exact")
    return replace(estimate, low=float(interval.low), high=float(interval.high))


def _within(lowest: float, highest: float, estimate: Estimate | None) -> Estimate | None:
    """Return the estimate with its interval clipped to this range."""
    if estimate is None or estimate.low is None or estimate.high is None:
        return estimate
    return replace(estimate, low=max(lowest, estimate.low), high=min(highest, estimate.high))
