"""Decides a sweep's next actions, from its spec, its trials and the current time. All functions are pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from multistep.api.sweep.sweep import SweepStatus, SweepWeightsStatus, TrialSweep
from multistep.engine.lifecycle.stop_and_suspend import suspended_seconds
from multistep.engine.sweep.next_trials import SweepLimits, TrialCounts, TrialFacts, count_trials, halt_reason, numbers_to_create
from multistep.engine.sweep.sweep_status import CreationError, active_status, budget_status, is_spent, lease_status
from multistep.engine.sweep.trial_grid import retries_of
from multistep.engine.sweep.trial_manifests import SweepPlan

BUDGET_CHECK_SECONDS: Final = 30.0  # interval of reconciles that check a budget of pod-hours while trials run


@dataclass(frozen=True)
class SweepDecision:
    """The next actions, with the numbers of the trials that they concern, and the status if all actions succeed."""

    create: range
    early: int
    """Trials from this number on are created suspended, with spec.prestart."""
    suspend: Collection[int]
    resume: Collection[int]
    stop: Collection[int]
    plan_branches: bool
    """Whether to plan the branches now."""
    status: SweepStatus
    seconds: float | None
    """Seconds until the next reconcile. If None, only a watch event causes one."""


def next_sweep_action(
    sweep: TrialSweep,
    plan: SweepPlan,
    created: int,
    trials: Collection[TrialFacts],
    now: float,
    error: CreationError | None = None,
    *,
    watched_since: float = 0.0,
    weights: SweepWeightsStatus | None = None,
) -> SweepDecision:
    """Return the next actions of an active sweep.

    ``watched_since`` is the time at which this process first read the sweep. ``weights`` are those that the model gateway knows.
    """
    counts = count_trials(plan.grid, created, trials, now, plan.spec.scoring)
    limits = _limits(sweep, now, watched_since)
    halted = halt_reason(counts, limits, now)
    budget = budget_status(sweep, now)
    suspended = sweep.spec.suspend or is_spent(budget, counts)
    stopped = halted is not None or suspended
    active = [trial for trial in trials if trial.state == "Active"]
    waiting = sorted(trial.number for trial in active if trial.suspend and trial.by_sweep)
    room = 0 if suspended else max(0, limits.parallelism - (len(active) - len(waiting)))
    create = range(0) if stopped else numbers_to_create(counts, limits)
    return SweepDecision(
        create=create,
        early=create.start + max(0, room - len(waiting)),
        suspend=[trial.number for trial in active if suspended and not trial.suspend],
        resume=waiting[:room],
        stop=[trial.number for trial in active if not trial.stop] if halted and halted.stops else [],
        plan_branches=counts.unplanned and counts.planned_finished and not stopped,
        status=active_status(sweep, plan, counts, halted, error, budget, now).model_copy(update={"weights": weights}),
        seconds=_due(counts, limits, now, suspended=suspended),
    )


def expires_at(sweep: TrialSweep, now: float, watched_since: float) -> float | None:
    """Return the time at which the lease expires if it is not renewed, in seconds since the epoch, or None without spec.lease.

    ``watched_since`` is the time at which this process first read the sweep. While the API server is unavailable, the client cannot
    renew the lease, and the operator's process ends. So the lease's duration restarts at ``watched_since``, unless the lease had
    already expired.
    """
    held = lease_status(sweep, now)
    if held is None or sweep.spec.lease is None:
        return None
    expired = any(condition.reason == "LeaseExpired" for condition in sweep.status.conditions)
    return max(held.renew_time.timestamp(), 0.0 if expired else watched_since) + sweep.spec.lease.seconds


def is_suspended_before_start(sweep: TrialSweep) -> bool:
    """Return whether a sweep with spec.tasksFrom is suspended before its start, so that spec.tasksFrom is not resolved yet."""
    return sweep.spec.suspend and sweep.status.start_time is None and sweep.spec.tasks_from is not None


def reopens(sweep: TrialSweep) -> bool:
    """Return whether a finished sweep continues: it has retries that were not created yet, and its spec was changed since it
    finished.

    Without a change of the spec, the limit that stopped the sweep would stop it again.
    """
    status = sweep.status
    changed = status.start_time is not None and status.observed_generation != sweep.metadata.generation
    return changed and len(retries_of(sweep.spec.retries, status.trials.total)) > status.trials.retried


def _limits(sweep: TrialSweep, now: float, watched_since: float) -> SweepLimits:
    spec, start = sweep.spec, sweep.status.start_time
    deadline = None
    if spec.active_deadline_seconds is not None and start is not None:
        deadline = start.timestamp() + suspended_seconds(sweep.status, now) + spec.active_deadline_seconds
    stop_when, lease_end = spec.stop_when, expires_at(sweep, now, watched_since)
    return SweepLimits(
        spec.parallelism, stop_when.pod_hours, stop_when.failures, deadline, spec.prestart, lease=lease_end, stop=spec.stop
    )


def _due(counts: TrialCounts, limits: SweepLimits, now: float, *, suspended: bool) -> float | None:
    running = limits.deadline is not None and not suspended  # a suspension postpones the deadline
    times = [limits.deadline - now] if running and limits.deadline is not None and now < limits.deadline else []
    if limits.lease is not None and now < limits.lease:
        times.append(limits.lease - now)
    if limits.pod_hours is not None and counts.active:
        times.append(BUDGET_CHECK_SECONDS)
    return min(times, default=None)
