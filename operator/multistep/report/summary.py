"""The report as data: leaderboard, steps of each task, durations, failures by class."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import combinations
from statistics import fmean, median, quantiles
from typing import TypeVar

from multistep.api.common.plural import plural
from multistep.api.sweep.sweep import Scoring
from multistep.api.trial.values import PHASES
from multistep.engine.score.usage_totals import omission
from multistep.report.agreement import Agreement
from multistep.report.branches import Branches, branches_of
from multistep.report.pass_at_k import pass_at_ks, task_means
from multistep.report.report_warnings import BrokenTask, branch_warnings, broken_tasks, warnings
from multistep.report.rows import StepRow, TrialRow, row_order
from multistep.report.statistics import Difference, Estimate, holm, is_significant, mean_score, paired_difference, pass_at

_Value = TypeVar("_Value", bound=float)


@dataclass(frozen=True)
class ReportedSweep:
    """The sweep that a report is about.

    For a deleted sweep, of which only trials exist, phase is empty and planned is None.
    """

    sweep: str
    namespace: str
    read: datetime
    """When the trials were read."""
    planned: int | None = None
    """Number of trials in the sweep."""
    phase: str = ""
    """Phase of the sweep."""
    scoring: Scoring = field(default_factory=Scoring)
    cost_usd: float | None = None
    """Cost of the model requests of the sweep's trials so far, in US dollars; None if unknown."""
    budget_usd: float | None = None
    """Budget of the sweep in US dollars, or None."""
    retried: int = 0
    """Number of trials that were run again."""
    replaced: Sequence[TrialRow] = ()
    """Trials that a retry replaced, which only add to their agents' costs."""
    judge: str = ""
    """Model of the judge in the template, or ""."""
    regraded: str = ""
    """Name of the sweep that this sweep regrades, or ""."""
    regraded_uid: str | None = None
    """UID of that sweep, if it existed when this sweep started."""

    @property
    def retries(self) -> str:
        """Return how many trials were run again, as text; "" if none was."""
        what = plural(self.retried, "trial without a score was", "trials without a score were")
        return f"{what} run again; each number counts once" if self.retried else ""

    @property
    def spending(self) -> str:
        """Return what the sweep spent of its budget, as text; "" without a budget."""
        if self.budget_usd is None:
            return ""
        if self.cost_usd is None:
            return f"no cost known, of a budget of ${self.budget_usd:.2f}"
        return f"${self.cost_usd:.2f} of ${self.budget_usd:.2f} spent"


@dataclass(frozen=True)
class LeaderboardRow:
    """One agent's line of the leaderboard."""

    agent: str
    mean: Estimate | None
    passes: Mapping[int, Estimate]
    """Pass@k by k."""
    trials: int
    """Number of all trials."""
    active: int
    """Number of active trials."""
    counted: int
    """Number of scored trials."""
    excluded: Mapping[str, int]
    """Number of excluded trials by failure class."""
    scored_failures: Mapping[str, int]
    """Number of trials scored although a failure ended them, by failure class."""
    tasks: int
    """Number of the agent's tasks."""
    mean_if_excluded_zero: float | None
    """What the mean would be if every excluded trial had scored 0."""
    tampered: int = 0
    """Number of trials with evidence of tampering."""
    cost_usd: float | None = None
    """Cost of all trials in US dollars, with those that a retry replaced; None if no trial has model requests or the cost of one
    of these trials is unknown."""
    cost_per_pass: float | None = None
    """cost_usd divided by the number of trials that passed."""
    cost_per_trial: float | None = None
    """Mean cost of the scored trials, averaged per task first, as the mean score is."""
    incomplete_requests: int = 0
    """Number of requests whose usage is unknown, which the costs do not include."""
    judge_cost_usd: float | None = None
    """Cost of the judges' requests in all trials, which cost_usd does not include; None if there were none, or if one is
    unknown."""
    user_cost_usd: float | None = None
    """The same of the simulated users' requests."""

    @property
    def omission(self) -> str:
        """Return which requests the costs do not include, as text; "" if they include all, or are unknown."""
        return "" if self.cost_usd is None else omission(self.incomplete_requests)


@dataclass(frozen=True)
class AgentComparison:
    """The comparison of two agents."""

    first: str
    second: str
    difference: Difference
    p: float | None
    """P-value of the difference, adjusted for the number of pairs (Holm)."""

    @property
    def is_real(self) -> bool:
        """Whether the difference is significant."""
        return is_significant(self.p)


@dataclass(frozen=True)
class StepCell:
    """A step of a task: how many of the scored trials reached it and passed it."""

    step: str
    trials: int
    reached: int
    passed: int
    score: float | None
    """Mean score over the scored trials that reached the step."""
    seconds: float | None
    """Mean duration over the trials that have durations."""


@dataclass(frozen=True)
class TaskSteps:
    """The steps of one task with one agent."""

    task: str
    agent: str
    counted: int
    """Number of scored trials."""
    mean: float | None
    steps: Sequence[StepCell]


@dataclass(frozen=True)
class DurationSummary:
    """Durations of an agent's trials, in seconds."""

    agent: str
    what: str
    """The word "trial", or the name of a phase of a step."""
    count: int
    median: float
    p90: float
    longest: float


@dataclass(frozen=True)
class FailedTrials:
    """Trials that failed for the same reason."""

    failure_class: str
    reason: str
    trials: Sequence[TrialRow]


@dataclass(frozen=True)
class Summary:
    """The whole report."""

    standings: Sequence[LeaderboardRow]
    pairs: Sequence[AgentComparison]
    """Comparisons of agents that share tasks."""
    tasks: Sequence[TaskSteps]
    durations: Sequence[DurationSummary]
    failures: Sequence[FailedTrials]
    warnings: Sequence[str]
    """Why means may be invalid."""
    broken: Sequence[BrokenTask]
    """Tasks that fail even with the agent oracle."""
    rows: Sequence[TrialRow]
    """All trials, sorted."""
    branches: Branches = field(default_factory=Branches)
    """The trials of single steps. The other fields, except failures and rows, do not include the branches."""
    agreement: Agreement | None = None
    """The agreement with the sweep that this sweep regrades; None if there is none."""


def summarize(rows: Iterable[TrialRow], replaced: Sequence[TrialRow] = ()) -> Summary:
    """Return the summary of the rows. Its standings are sorted by mean, the best first. replaced: trials that a retry replaced."""
    ordered = sorted(rows, key=row_order)
    agents: dict[str, list[TrialRow]] = defaultdict(list)
    ordinary = [row for row in ordered if not row.branch]
    for row in ordinary:
        agents[row.agent].append(row)
    branches = branches_of(ordered)
    standings = [
        _standing(agent, those, [row for row in replaced if row.agent == agent and not row.branch])
        for agent, those in sorted(agents.items())
    ]
    standings.sort(key=lambda row: -row.mean.value if row.mean else float("inf"))
    ranked = {row.agent: agents[row.agent] for row in standings}
    return Summary(
        standings,
        compare_agents(ranked),
        list(_tasks(ordinary)),
        list(_durations(ranked)),
        list(_failures(ordered)),
        [*warnings(ranked), *branch_warnings(branches)],
        broken_tasks(ordinary),
        ordered,
        branches,
    )


def compare_agents(agents: Mapping[str, Sequence[TrialRow]]) -> list[AgentComparison]:
    """Return the comparisons of all pairs of agents that share tasks. agents: rows by agent."""
    return adjusted_comparisons(
        (first, second, mean_difference(agents[first], agents[second])) for first, second in combinations(agents, 2)
    )


def adjusted_comparisons(compared: Iterable[tuple[str, str, Difference | None]]) -> list[AgentComparison]:
    """Return the pairs that share tasks, with p-values adjusted for the number of pairs."""
    differences = [(first, second, difference) for first, second, difference in compared if difference is not None]
    raised = iter(holm([difference.p for _, _, difference in differences if difference.p is not None]))
    return [
        AgentComparison(first, second, difference, None if difference.p is None else next(raised))
        for first, second, difference in differences
    ]


def mean_difference(first: Iterable[TrialRow], second: Iterable[TrialRow]) -> Difference | None:
    """Return the mean difference of the first minus the second by task; None if no task has scored trials in both."""
    return paired_difference(scores_by_task(first), scores_by_task(second))


def scores_by_task(rows: Iterable[TrialRow]) -> Mapping[str, Sequence[float]]:
    """Return the scores of the scored trials, by task."""
    return _by_task(rows, _counts)


def _counts(row: TrialRow) -> float | None:
    return row.counts


def _passed(row: TrialRow) -> bool | None:
    return row.passed


def _counts_or_zero(row: TrialRow) -> float | None:
    return 0.0 if row.excluded else row.counts


def _cost_if_scored(row: TrialRow) -> float | None:
    """Return the cost of a scored trial, 0 if it has no model requests; None if the trial is not scored."""
    return None if row.counts is None else row.cost_usd or 0.0


def _by_task(rows: Iterable[TrialRow], number: Callable[[TrialRow], _Value | None]) -> dict[str, list[_Value]]:
    by_task: dict[str, list[_Value]] = defaultdict(list)
    for row in rows:
        if (value := number(row)) is not None:
            by_task[row.task].append(value)
    return by_task


def _standing(agent: str, rows: Sequence[TrialRow], replaced: Sequence[TrialRow]) -> LeaderboardRow:
    scores, passed = _by_task(rows, _counts), _by_task(rows, _passed)
    passes = {k: pass_at(k, passed) for k in pass_at_ks(max(map(len, passed.values()), default=0))}
    with_excluded = mean_score(_by_task(rows, _counts_or_zero))
    cost, won = _cost([*rows, *replaced]), sum(map(sum, passed.values()))
    return LeaderboardRow(
        agent=agent,
        mean=mean_score(scores),
        passes={k: estimate for k, estimate in passes.items() if estimate is not None},
        trials=len(rows),
        active=sum(row.state == "Active" for row in rows),
        counted=sum(map(len, scores.values())),
        excluded=dict(Counter(row.failure_class for row in rows if row.excluded)),
        scored_failures=dict(Counter(row.failure_class for row in rows if row.scored_failure)),
        tasks=len({row.task for row in rows}),
        mean_if_excluded_zero=with_excluded.value if with_excluded and any(row.excluded for row in rows) else None,
        tampered=sum(row.tampering != "" for row in rows),
        cost_usd=cost,
        cost_per_pass=cost / won if cost is not None and won else None,
        cost_per_trial=None if cost is None else _mean(task_means(_by_task(rows, _cost_if_scored)).values()),
        incomplete_requests=sum(row.incomplete_requests or 0 for row in (*rows, *replaced)),
        judge_cost_usd=_sum_of_known([row.judge_cost_usd for row in (*rows, *replaced) if row.judge_requests is not None]),
        user_cost_usd=_sum_of_known([row.user_cost_usd for row in (*rows, *replaced) if row.user_requests is not None]),
    )


def _cost(rows: Sequence[TrialRow]) -> float | None:
    return _sum_of_known([row.cost_usd for row in rows if row.counted_by])


def _sum_of_known(costs: Sequence[float | None]) -> float | None:
    """Return the sum; None if there is no cost, or if one is unknown."""
    return None if None in costs or not costs else sum(cost for cost in costs if cost is not None)


def _tasks(rows: Sequence[TrialRow]) -> Iterable[TaskSteps]:
    for (task, agent), members in _grouped(rows, lambda row: (row.task, row.agent)):
        scores = [row.counts for row in members if row.counts is not None]
        yield TaskSteps(task, agent, len(scores), fmean(scores) if scores else None, list(_cells(members)))


def _cells(members: Sequence[TrialRow]) -> Iterable[StepCell]:
    """Yield a cell for each step, in the order of the trial with the most steps."""
    counted = sorted((row for row in members if row.counts is not None), key=lambda row: -len(row.steps))
    by_name: dict[str, list[StepRow]] = defaultdict(list)
    for row in counted:
        for step in row.steps:
            by_name[step.name].append(step)
    for name, steps in by_name.items():
        yield StepCell(
            step=name,
            trials=len(counted),
            reached=len(steps),
            passed=sum(step.passed for step in steps),
            score=_mean(step.score for step in steps),
            seconds=_mean(sum(step.seconds.values()) if step.seconds else None for step in steps),
        )


def _mean(numbers: Iterable[float | None]) -> float | None:
    there = [number for number in numbers if number is not None]
    return fmean(there) if there else None


def _grouped(rows: Iterable[TrialRow], key: Callable[[TrialRow], tuple[str, str]]) -> list[tuple[tuple[str, str], list[TrialRow]]]:
    groups: dict[tuple[str, str], list[TrialRow]] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    return sorted(groups.items())


def _durations(agents: Mapping[str, Sequence[TrialRow]]) -> Iterable[DurationSummary]:
    for agent, rows in agents.items():
        yield from _duration(agent, "trial", [row.seconds for row in rows if row.seconds is not None])
        steps = [step for row in rows for step in row.steps]
        for phase in PHASES:
            yield from _duration(agent, phase, [step.seconds[phase] for step in steps if phase in step.seconds])


def _duration(agent: str, what: str, seconds: Sequence[float]) -> Iterable[DurationSummary]:
    if seconds:
        p90 = quantiles(seconds, n=10, method="inclusive")[-1] if len(seconds) > 1 else seconds[0]
        yield DurationSummary(agent, what, len(seconds), median(seconds), p90, max(seconds))


def _failures(rows: Sequence[TrialRow]) -> Iterable[FailedTrials]:
    groups = _grouped((row for row in rows if row.failure_class), lambda row: (row.failure_class, row.reason))
    for (failure_class, reason), members in sorted(groups, key=lambda group: -len(group[1])):
        yield FailedTrials(failure_class, reason, members)
