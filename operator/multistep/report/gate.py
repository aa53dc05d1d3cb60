"""The verdict of `multistep gate`: whether a candidate scores worse than a baseline. docs/how-to/gate.md describes the rule.

The test is that of `sweep compare`: scores are averaged per task, and the difference is the mean over the tasks that both have.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import ceil, inf, sqrt
from statistics import fmean, variance
from typing import Final

from scipy import stats

from multistep.api.common.plural import plural
from multistep.report.rows import FEWEST
from multistep.report.statistics import CONFIDENCE, Difference, paired_difference, task_differences

POWER: Final = 0.8
"""Probability with which a gate of the planned size comes to its verdict."""

_LARGEST_DEVIATION: Final = 0.5
"""Largest standard deviation of scores between 0 and 1: that of a task that passes in half of its attempts."""

Scores = Mapping[str, Sequence[float]]
"""Scores of the scored trials, by task."""


class Verdict(StrEnum):
    """What a gate concludes about the candidate."""

    BETTER = "Better"
    """The candidate's mean score is higher, and the difference is significant."""
    NO_WORSE = "NoWorse"
    """The interval of the difference excludes a drop of more than the tolerance."""
    WORSE = "Worse"
    """The candidate's mean score is lower by more than the tolerance, and the difference is significant."""
    NOT_ENOUGH_DATA = "NotEnoughData"
    """The trials show neither."""


PASSES: Final = frozenset({Verdict.BETTER, Verdict.NO_WORSE})
"""The verdicts with which a candidate passes."""


@dataclass(frozen=True)
class Need:
    """What a second gate would need in order to decide, if scores vary as in the trials of this one."""

    attempts: int | None
    """Attempts of each task on each side; None if no number of attempts suffices."""
    tasks: int | None
    """Tasks with as many attempts as now; None if the tasks give no estimate."""


@dataclass(frozen=True)
class GateResult:
    """The verdict with the numbers that led to it."""

    verdict: Verdict
    difference: Difference | None
    """Mean score of the candidate minus that of the baseline; None if they share no task."""
    max_drop: float
    """Drop of the mean score that is tolerated."""
    need: Need | None = None
    """Only of the verdict NotEnoughData."""
    lacking: int = 0
    """Number of tasks without a score of the candidate, if these are why the verdict is NotEnoughData."""


def judge(candidate: Scores, baseline: Scores, max_drop: float, excluded: Collection[str] = ()) -> GateResult:
    """Return the verdict about a candidate. max_drop: the drop of its mean score that is tolerated, at least 0.

    excluded: tasks whose trials of the candidate are all excluded. It passes only if it would pass, too, with a score of 0 in those
    that the baseline has: a candidate must not pass because its trials of difficult tasks failed.
    """
    found = paired_difference(candidate, baseline)
    verdict = _verdict(found, max_drop)
    if verdict in PASSES and (lacking := {task: [0.0] for task in excluded if task in baseline}):
        least = _verdict(paired_difference({**candidate, **lacking}, baseline), max_drop)
        if least not in PASSES:
            return GateResult(Verdict.NOT_ENOUGH_DATA, found, max_drop, lacking=len(lacking))
    need = _need(candidate, baseline, max_drop) if verdict is Verdict.NOT_ENOUGH_DATA else None
    return GateResult(verdict, found, max_drop, need)


def _verdict(found: Difference | None, max_drop: float) -> Verdict:
    if found is None or found.estimate.tasks < FEWEST:
        return Verdict.NOT_ENOUGH_DATA
    value = found.estimate.value
    low = value if found.estimate.low is None else found.estimate.low
    if found.is_real and value > 0:
        return Verdict.BETTER
    if found.is_real and value < -max_drop:
        return Verdict.WORSE
    if low >= -max_drop:
        return Verdict.NO_WORSE
    return Verdict.NOT_ENOUGH_DATA


def smallest_drop(tasks: int, attempts: int) -> float:
    """Return the smallest drop of the mean score that a gate of this size finds with the probability POWER.

    Tasks are assumed to pass in half of their attempts. ``attempts`` are those of each task on each side. The drop is infinite with
    fewer tasks than a test needs.
    """
    if tasks < FEWEST:
        return inf
    return _sum_of_quantiles(tasks) * _LARGEST_DEVIATION * sqrt(2 / (attempts * tasks))


def too_small(tasks: int, attempts: int, drop: float) -> str:
    """Return a note if a gate of two such sweeps would seldom find this drop of the mean score; "" if it would, or if the number of
    tasks is not known yet. tasks: their number, 0 if it is not known."""
    if tasks == 0 or (smallest := smallest_drop(tasks, attempts)) <= drop:
        return ""
    if smallest == inf:
        return f"note: {plural(tasks, 'task')}: fewer than {FEWEST} tasks never show a drop, however many attempts they have"
    needed = ceil(attempts * (smallest / drop) ** 2)
    size = f"{plural(tasks, 'task')} with {plural(attempts, 'attempt')} each"
    return (
        f"note: {size} show a drop of {smallest:.2g} or more in four of five cases, but seldom one of {drop:g}, which needs about "
        f"{needed} attempts if tasks pass in half of them"
    )


def _need(candidate: Scores, baseline: Scores, max_drop: float) -> Need:
    """Return the size at which the gate would come to a verdict: that a lower candidate is worse, if the difference is as observed,
    and otherwise that the candidate is no worse, if it equals the baseline.

    The variance of a task's difference has two parts: that between attempts, which shrinks with their number, and the rest, which
    is how much the difference itself varies between tasks and which only more tasks average out.
    """
    shared = task_differences(candidate, baseline)
    deltas = list(shared.values())
    if len(deltas) < FEWEST:
        return Need(None, FEWEST)
    mean = fmean(deltas)
    distance = -mean if mean < -max_drop else max_drop + max(0.0, mean)
    if distance == 0:
        return Need(None, None)
    allowed = (distance / _sum_of_quantiles(len(deltas))) ** 2 * len(deltas)  # of the variance of a task's difference
    total = variance(deltas)
    within = min(total, fmean(_variance_of_mean(candidate[task]) + _variance_of_mean(baseline[task]) for task in shared))
    most = max(len(each) for task in shared for each in (candidate[task], baseline[task]))
    if most == 1:
        within = total  # a single attempt cannot tell the two parts apart
    between = total - within
    attempts = ceil(most * within / (allowed - between)) if allowed > between else None
    return Need(attempts and max(attempts, most + 1), max(len(deltas) + 1, ceil(len(deltas) * total / allowed)))


def _variance_of_mean(scores: Sequence[float]) -> float:
    return variance(scores) / len(scores) if len(scores) > 1 else 0.0


def _sum_of_quantiles(tasks: int) -> float:
    """Return how many standard errors a difference must have in order to be found with the probability POWER."""
    return float(stats.t.ppf((1 + CONFIDENCE) / 2, tasks - 1) + stats.t.ppf(POWER, tasks - 1))
