"""How far the verdicts of two sweeps on the same work agree: a regrade's and its source's, whose judges differ.

The measure is Krippendorff's alpha, which is 1 for equal verdicts and 0 for those of chance. Its interval is clustered by task, as
verdicts on one task are correlated. docs/reference/statistics.md has the formulas.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum, sqrt
from statistics import fmean
from typing import TypeAlias

from scipy import stats

from multistep.report.rows import StepRow, TrialRow
from multistep.report.statistics import CONFIDENCE, Estimate

_ALIKE = 1e-12
Pair: TypeAlias = tuple[float, float]
"""The first and the second verdict on a step, as numbers."""


@dataclass(frozen=True)
class Agreement:
    """The agreement of a sweep's verdicts with those of the sweep that it regrades."""

    source: str
    """Name of the regraded sweep."""
    former_judge: str
    """Model of the regraded sweep's judge, or ""."""
    judge: str
    """Model of this sweep's judge, or ""."""
    steps: int
    """Number of steps that both sweeps verified."""
    tasks: int
    alike: int
    """Number of these steps that passed in both sweeps, or in none."""
    passes: Estimate | None
    """Alpha of whether a step passed; None if all verdicts are equal or there are none, for which alpha is undefined."""
    scores: Estimate | None
    """Alpha of the steps' scores, by their squared differences; None as above."""


def agreement(source: str, judges: tuple[str, str], first: Iterable[TrialRow], second: Iterable[TrialRow]) -> Agreement:
    """Return the agreement of the trials of two sweeps, matched by task, agent and attempt. Branches do not count.

    source: name of the first sweep. judges: the models of the judges of the first and the second.
    """
    former = {_cell(row): row for row in first if not row.branch}
    graded: dict[str, list[tuple[StepRow, StepRow]]] = defaultdict(list)
    trials = 0
    for row in second:
        other = None if row.branch else former.get(_cell(row))
        if other is not None and (steps := _graded_by_both(other, row)):
            graded[row.task] += steps
            trials += 1
    every = [pair for pairs in graded.values() for pair in pairs]
    return Agreement(
        source,
        *judges,
        steps=len(every),
        tasks=len(graded),
        alike=sum(one.passed == other.passed for one, other in every),
        passes=alpha({task: [(one.passed, other.passed) for one, other in pairs] for task, pairs in graded.items()}, trials),
        scores=alpha({task: [(one.score, other.score) for one, other in pairs] for task, pairs in graded.items()}, trials),
    )


def _cell(row: TrialRow) -> tuple[str, str, int]:
    return row.task, row.agent, row.attempt


def _graded_by_both(first: TrialRow, second: TrialRow) -> list[tuple[StepRow, StepRow]]:
    """Return the steps in which both trials have a verdict."""
    former = {step.name: step for step in first.steps if step.rewards is not None}
    return [(former[step.name], step) for step in second.steps if step.rewards is not None and step.name in former]


def alpha(pairs: Mapping[str, Sequence[Pair]], trials: int) -> Estimate | None:
    """Return Krippendorff's alpha of pairs of verdicts, by their squared differences; None if it is undefined. pairs: by task.
    trials: number of the trials in which they are.

    For verdicts that are 0 or 1 this is the nominal alpha. The interval is that of the jackknife, which leaves out one task at a
    time, with Student's quantile; no interval if there is one task, or if one of these alphas is undefined or all are equal.
    """
    every = [verdict for of_task in pairs.values() for pair in of_task for verdict in pair]
    middle = fmean(every) if every else 0.0
    sums = [_Sums.of(of_task, middle) for of_task in pairs.values()]
    whole = _Sums.total(sums)
    value = whole.alpha()
    if value is None:
        return None
    low, high = _interval(value, [_Sums.total([*sums[:index], *sums[index + 1 :]]).alpha() for index in range(len(sums))])
    return Estimate(value, low, high, len(sums), trials)


def _interval(value: float, without: Sequence[float | None]) -> tuple[float | None, float | None]:
    """Return the confidence interval. without: alpha without each of the tasks."""
    known, count = [each for each in without if each is not None], len(without)
    if len(known) < count or count < 2 or max(known) - min(known) <= _ALIKE:
        return None, None
    middle = fmean(known)
    error = sqrt((count - 1) / count * fsum((each - middle) ** 2 for each in known))
    width = float(stats.t.ppf((1 + CONFIDENCE) / 2, count - 1)) * error
    return max(-1.0, value - width), min(1.0, value + width)


@dataclass(frozen=True)
class _Sums:
    """Sums over pairs of verdicts, of which alpha is a function: it needs no memory for each pair of values."""

    pairs: int
    apart: float
    """Sum of the squared differences of the pairs."""
    verdicts: float
    squares: float
    """Sum of the squared verdicts."""

    @classmethod
    def of(cls, pairs: Sequence[Pair], middle: float) -> _Sums:
        """Return the sums of these pairs. middle: a number near the verdicts, which is subtracted from them against rounding."""
        near = [(one - middle, other - middle) for one, other in pairs]
        return cls(
            len(near),
            fsum((one - other) ** 2 for one, other in near),
            fsum(one + other for one, other in near),
            fsum(one**2 + other**2 for one, other in near),
        )

    @classmethod
    def total(cls, sums: Sequence[_Sums]) -> _Sums:
        return cls(
            sum(each.pairs for each in sums),
            fsum(each.apart for each in sums),
            fsum(each.verdicts for each in sums),
            fsum(each.squares for each in sums),
        )

    def alpha(self) -> float | None:
        """Return 1 - (mean squared difference within pairs) / (mean squared difference of any two verdicts); None without the
        latter."""
        count = 2 * self.pairs
        spread = self.squares - self.verdicts**2 / count if count else 0.0
        if spread <= _ALIKE * self.squares:
            return None
        return 1 - (self.apart / self.pairs) * (count - 1) / (2 * spread)
