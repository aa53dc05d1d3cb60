"""The verdict of `multistep gate`: whether a candidate scores worse than a baseline. docs/how-to/gate.md describes the rule.

The test is that of `sweep compare`: scores are averaged per task, and the difference is the mean over the tasks that both have.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import ceil, inf, log, sqrt
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
    """The interval of the difference, or the bound in place of one, excludes a drop of more than the tolerance."""
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
    verdict = _verdict(candidate, baseline, max_drop)
    lacking = {task: [0.0] for task in excluded if task in baseline}
    if verdict in PASSES and lacking and _verdict({**candidate, **lacking}, baseline, max_drop) not in PASSES:
        return GateResult(Verdict.NOT_ENOUGH_DATA, found, max_drop, lacking=len(lacking))
    need = _need(candidate, baseline, found, max_drop) if verdict is Verdict.NOT_ENOUGH_DATA else None
    return GateResult(verdict, found, max_drop, need)


def _verdict(candidate: Scores, baseline: Scores, max_drop: float) -> Verdict:
    found = paired_difference(candidate, baseline)
    if found is None or found.estimate.tasks < FEWEST:
        return Verdict.NOT_ENOUGH_DATA
    value = found.estimate.value
    if found.is_real and value > 0:
        return Verdict.BETTER
    if found.is_real and value < -max_drop:
        return Verdict.WORSE
    low = found.estimate.low
    if low is None:  # all tasks have the same difference, which says nothing about its variance
        others = _share_of_others(found.estimate.tasks)
        low = (1 - others) * value - others * _range_of_scores(candidate, baseline)
    return Verdict.NO_WORSE if low >= -max_drop else Verdict.NOT_ENOUGH_DATA


def _share_of_others(tasks: int) -> float:
    """Return the largest share of all tasks that may differ otherwise, if these differ by the same (Clopper and Pearson, 1934)."""
    return 1 - float(stats.binomtest(tasks, tasks).proportion_ci(CONFIDENCE, method="exact").low)


def _range_of_scores(candidate: Scores, baseline: Scores) -> float:
    """Return the most by which scores can differ: 1, or more if scores outside of 0 to 1 were seen."""
    seen = [score for side in (candidate, baseline) for of_task in side.values() for score in of_task]
    return max(1.0, *seen) - min(0.0, *seen)


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


def _need(candidate: Scores, baseline: Scores, found: Difference | None, max_drop: float) -> Need:
    """Return the size at which the gate would come to a verdict: that a lower candidate is worse, if the difference is as observed,
    and otherwise that the candidate is no worse, if it equals the baseline.

    The variance of a task's difference has two parts: that between attempts, which shrinks with their number, and the rest, which
    is how much the difference itself varies between tasks and which only more tasks average out.
    """
    if found is None or found.estimate.tasks < FEWEST:
        return Need(None, FEWEST)
    mean = found.estimate.value
    if found.estimate.low is None:
        return Need(None, _tasks_for(mean, max_drop, _range_of_scores(candidate, baseline)))
    shared = task_differences(candidate, baseline)
    deltas = list(shared.values())
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


def _tasks_for(difference: float, max_drop: float, most: float) -> int | None:
    """Return how many tasks decide the gate if all have this difference; None if no number does. most: as of _range_of_scores."""
    share = (max_drop + difference) / (most + difference)
    return ceil(log((1 - CONFIDENCE) / 2) / log(1 - share)) if share > 0 else None


def _variance_of_mean(scores: Sequence[float]) -> float:
    return variance(scores) / len(scores) if len(scores) > 1 else 0.0


def _sum_of_quantiles(tasks: int) -> float:
    """Return how many standard errors a difference must have in order to be found with the probability POWER."""
    return float(stats.t.ppf((1 + CONFIDENCE) / 2, tasks - 1) + stats.t.ppf(POWER, tasks - 1))
