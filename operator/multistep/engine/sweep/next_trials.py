"""Decides which trials a sweep creates, counts their results, and decides when it halts. Pure: the clock is an argument.

Creation is idempotent. A sweep's trials are created in the order of their numbers. The operator reads how many were created from
the highest number of an existing trial and from the status, so creation resumes at the next number after a crash. A trial's name is
a function of its number, so a leader with an outdated cache gets a conflict instead of creating a trial twice. A missing trial with
a lower number was deleted. The status reports that, and the trial is never created again.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from multistep.api.common.plural import plural
from multistep.api.sweep.sweep import Scoring
from multistep.api.trial.status import FailureClass
from multistep.engine.score.score_in_sweep import State, counted_score, failure_class_of, is_zeroed
from multistep.engine.sweep.trial_grid import TrialGrid

T = TypeVar("T")


def trials_that_count(trials: Iterable[tuple[int, int, T]], is_scored: Callable[[T], bool]) -> dict[int, T]:
    """Return, for each number, the trial that counts: the first scored one, or the newest if none is scored.

    ``trials`` are tuples of the number for which a trial counts, the trial's own number, and the trial. A retry counts for the
    number of the trial that it repeats.
    """
    counting: dict[int, T] = {}
    for number, _, trial in sorted(trials, key=lambda numbered: numbered[1]):
        if number not in counting or not is_scored(counting[number]):
            counting[number] = trial
    return counting


ActivePhase = Literal["Pending", "Running", "Suspended"]

CREATE_AT_ONCE = 100  # maximum number of trials created between two writes of the sweep's status


@dataclass(frozen=True, slots=True)
class TrialFacts:
    """The facts of a trial that a sweep needs. score_in_sweep.Ended explains failure_class, score, invalid, agent_error and
    tampered."""

    number: int
    state: State
    score: float | None = None
    failure_class: FailureClass | None = None
    pod_seconds: float = 0.0
    """Number of seconds for which the trial's finished pods ran steps."""
    since: float | None = None
    """Start of the running pod's first step, in seconds since the epoch."""
    phase: ActivePhase = "Pending"
    """Phase of an active trial."""
    suspend: bool = False
    """The trial's spec.suspend."""
    by_sweep: bool = False
    """Whether the sweep suspended the trial."""
    stop: bool = False
    """The trial's spec.stop."""
    passed: bool = False
    """Whether the trial passed (score_in_sweep.Scored.passed)."""
    invalid: bool = False
    agent_error: bool = False
    tolerated: bool = False
    tampered: bool = False
    cost_usd: float | None = None
    """Known cost of the trial's model requests."""
    unpriced: bool = False
    """Whether the cost of some of the trial's model requests is unknown."""
    refused_at: float | None = None
    """Start of the last step in which the sweep's budget refused a request, in seconds since the epoch."""
    refused_usd: float | None = None
    """The most that the refused request could have cost, None if it is unknown."""


@dataclass(frozen=True)
class SweepLimits:
    """Limits at which a sweep creates no more trials. None means no limit."""

    parallelism: int
    pod_hours: float | None = None
    failures: Mapping[FailureClass, int] = field(default_factory=dict)
    """Tolerated number of failures, by failure class."""
    deadline: float | None = None
    """Time of spec.activeDeadlineSeconds, in seconds since the epoch."""
    prestart: int = 0
    """Number of trials that may be active beyond ``parallelism``. They are suspended, but already have a pod."""
    lease: float | None = None
    """Time at which the lease of the sweep's client expires, in seconds since the epoch."""
    stop: bool = False
    """Whether a user stopped the sweep (spec.stop)."""


@dataclass(frozen=True)
class AgentCounts:
    """An agent's results in its ordinary trials, which are those that are not branches."""

    counted: int
    """Number of trials that count in the mean."""
    finished: int
    """Number of finished trials."""
    passed: int
    """Number of trials that count and passed."""
    mean: float | None
    """Mean over the tasks of each task's mean score."""


@dataclass(frozen=True)
class TrialCounts:
    """The counts and results of a sweep's trials.

    A trial and its retries count once. Only phases, cost_usd, pod_hours and refused_at include all of them.
    """

    total: int
    created: int
    phases: Mapping[ActivePhase, int]
    complete: int
    failed: int
    deleted: int
    """Number of created trials that no longer exist, without retries."""
    excluded: Mapping[FailureClass, int]
    """Number of finished trials that do not count, by failure class."""
    scored: Mapping[FailureClass, int]
    """Number of trials that count although a failure ended them, by failure class."""
    pod_hours: float
    agents: Sequence[AgentCounts]
    """Results by agent index."""
    stopped: bool
    """Whether any trial that counts was stopped."""
    unplanned: bool = False
    """Whether branches are still to be planned, after the ordinary trials have finished."""
    cost_usd: float | None = None
    """Known cost of the trials' model requests, None if no request that cost anything has a known price."""
    refused_at: float | None = None
    """The latest TrialFacts.refused_at of all trials."""
    refused_usd: float | None = None
    """The refused_usd of the trial with the latest refused_at."""
    retries: int = 0
    """Number of planned retries."""
    retried: int = 0
    """Number of created retries."""

    @property
    def active(self) -> int:
        """Return the number of active trials."""
        return sum(self.phases.values())

    @property
    def counted(self) -> int:
        """Return the number of trials that count, including branches."""
        return self.complete + self.failed - sum(self.excluded.values())

    def failures(self, failure_class: FailureClass) -> int:
        """Return the number of trials that a failure of this class ended, counted or excluded."""
        return self.excluded.get(failure_class, 0) + self.scored.get(failure_class, 0)

    @property
    def all_finished(self) -> bool:
        """Return whether all trials were created, none is active, and no branches are left to plan."""
        return self.planned_finished and not self.unplanned

    @property
    def planned_finished(self) -> bool:
        """Return whether all trials that are planned so far were created and none is active."""
        return self.next_number == self.total + self.retries and not self.active

    @property
    def next_number(self) -> int:
        """Return the number of the next trial to create. Retries are created after all other trials."""
        return self.created + self.retried


@dataclass(frozen=True)
class Halt:
    """The reason why a sweep creates no more trials."""

    reason: Literal["BudgetSpent", "TooManyFailures", "DeadlineExceeded", "LeaseExpired", "Stopped"]
    message: str

    @property
    def stops(self) -> bool:
        """Return whether active trials are stopped too."""
        return self.reason in ("DeadlineExceeded", "LeaseExpired", "Stopped")


def count_trials(
    grid: TrialGrid, created: int, trials: Collection[TrialFacts], now: float, scoring: Scoring | None = None
) -> TrialCounts:
    """Return the counts and results of the existing trials.

    ``created`` is the known number of created trials, including retries. ``now`` is in seconds since the epoch.
    """
    scoring, states = scoring or Scoring(), Counter[State]()
    phases = Counter[ActivePhase](trial.phase for trial in trials if trial.state == "Active")
    excluded, scored = Counter[FailureClass](), Counter[FailureClass]()
    scores: list[dict[int, list[float]]] = [defaultdict(list) for _ in grid.agents]  # scores of each agent, by index of the task
    finished, passed = [0 for _ in grid.agents], [0 for _ in grid.agents]
    created = max(created, max((trial.number for trial in trials), default=-1) + 1)
    counting, there = _counting(grid, created, trials, scoring)
    for trial in counting:
        if trial.state == "Active":
            continue
        states[trial.state] += 1
        cell, score = grid.cell(trial.number), counted_score(trial, scoring)
        finished[cell.agent] += cell.branch is None
        if score is None:
            excluded[failure_class_of(trial, scoring) or "Agent"] += 1
            continue
        if cell.branch is None:
            scores[cell.agent][cell.task].append(score)
            passed[cell.agent] += trial.passed and not is_zeroed(trial, scoring)
        if (failure_class := failure_class_of(trial, scoring)) is not None:
            scored[failure_class] += 1
    return TrialCounts(
        total=grid.total,
        created=min(created, grid.total),
        phases=phases,
        complete=states["Complete"],
        failed=states["Failed"],
        deleted=min(created, grid.total) - there,
        excluded=excluded,
        scored=scored,
        pod_hours=sum(trial.pod_seconds + _running_seconds(trial, now) for trial in trials) / 3600,
        agents=[_agent(of_agent.values(), *counts) for of_agent, *counts in zip(scores, finished, passed, strict=True)],
        stopped=any(trial.stop for trial in counting),
        unplanned=grid.branches is None,
        retries=len(grid.retries),
        retried=max(0, created - grid.total),
        **_spending(trials),
    )


def _counting(
    grid: TrialGrid, created: int, trials: Collection[TrialFacts], scoring: Scoring
) -> tuple[Collection[TrialFacts], int]:
    """Return the trials that count, at most one of each group, and how many groups have a trial.

    A group is a trial and its retries. If a group has no score and its next retry is not created yet, no trial of the group counts.
    """

    def is_scored(trial: TrialFacts) -> bool:
        return counted_score(trial, scoring) is not None

    by_number = trials_that_count(((grid.sweep_number(trial.number), trial.number, trial) for trial in trials), is_scored)
    due = {retry.number for retry in grid.retries[max(0, created - grid.total) :]}
    counting = [trial for number, trial in by_number.items() if number not in due or is_scored(trial)]
    return counting, len(by_number)


def _running_seconds(trial: TrialFacts, now: float) -> float:
    return 0.0 if trial.since is None else max(0.0, now - trial.since)


def _spending(trials: Collection[TrialFacts]) -> dict[str, float | None]:
    costs = [trial.cost_usd for trial in trials if trial.cost_usd is not None]
    refusals = [(trial.refused_at, trial.refused_usd) for trial in trials if trial.refused_at is not None]
    at, usd = max(refusals, key=lambda refusal: (refusal[0], refusal[1] or 0.0), default=(None, None))
    cost = math.fsum(costs) or (None if not costs or any(trial.unpriced for trial in trials) else 0.0)
    return {"cost_usd": cost, "refused_at": at, "refused_usd": usd}


def _agent(by_task: Collection[Sequence[float]], finished: int, passed: int) -> AgentCounts:
    means = [math.fsum(scores) / len(scores) for scores in by_task]
    return AgentCounts(sum(map(len, by_task)), finished, passed, math.fsum(means) / len(means) if means else None)


def halt_reason(counts: TrialCounts, limits: SweepLimits, now: float) -> Halt | None:
    """Return why the sweep creates no more trials, None if it continues. ``now`` is in seconds since the epoch."""
    if limits.stop:
        return Halt("Stopped", "spec.stop is true")
    if limits.lease is not None and now >= limits.lease:
        return Halt(
            "LeaseExpired", "the sweep's client did not renew its lease (spec.lease): it ended, or could not reach the cluster"
        )
    if limits.deadline is not None and now >= limits.deadline:
        return Halt("DeadlineExceeded", "the sweep was active for longer than spec.activeDeadlineSeconds")
    if limits.pod_hours is not None and counts.pod_hours >= limits.pod_hours:
        return Halt("BudgetSpent", f"the trials have used {counts.pod_hours:.2f} pod-hours, and the budget is {limits.pod_hours:g}")
    for failure_class, tolerated in limits.failures.items():
        if (failures := counts.failures(failure_class)) > tolerated:
            text = (
                f"{plural(failures, 'trial')} had a failure of class {failure_class}; spec.stopWhen.failures tolerates {tolerated}"
            )
            return Halt("TooManyFailures", text)
    return None


def numbers_to_create(counts: TrialCounts, limits: SweepLimits) -> range:
    """Return the numbers of the trials to create now."""
    room, start = max(limits.parallelism + limits.prestart - counts.active, 0), counts.next_number
    return range(start, min(start + room, start + CREATE_AT_ONCE, counts.total + counts.retries))
