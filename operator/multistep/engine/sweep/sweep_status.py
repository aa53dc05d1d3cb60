"""A sweep's status, from its spec, its trials and the current time. All functions are pure."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, get_args

from multistep.api.common import labels
from multistep.api.common.plural import plural
from multistep.api.sweep.sweep import (
    SweepAgentStatus,
    SweepBranchesStatus,
    SweepBudgetStatus,
    SweepLeaseStatus,
    SweepStatus,
    SweepTasksStatus,
    SweepTrials,
    TrialSweep,
)
from multistep.api.trial.values import FINISHED_PHASES, Phase
from multistep.engine.lifecycle.stop_and_suspend import suspended_seconds
from multistep.engine.status.status_size import bounded, shortened
from multistep.engine.status.trial_status import conditions, time
from multistep.engine.sweep import plan_branches
from multistep.engine.sweep.next_trials import (
    Halt,
    TrialCounts,
)
from multistep.engine.sweep.plan_branches import States
from multistep.engine.sweep.trial_grid import retries_of, unknown_numbers
from multistep.engine.sweep.trial_manifests import SweepPlan

_MAX_RENEWAL: Final = 64  # maximum number of characters of an annotation that the status has in full


def lease_status(sweep: TrialSweep, now: float) -> SweepLeaseStatus | None:
    """Return the status of the lease, None without spec.lease. A new value of the annotation labels.RENEWAL renews the lease."""
    if sweep.spec.lease is None:
        return None
    renewal, known = sweep.metadata.annotations.get(labels.RENEWAL, ""), sweep.status.lease
    if len(renewal) > _MAX_RENEWAL:
        renewal = hashlib.sha256(renewal.encode()).hexdigest()
    return known if known is not None and known.renewal == renewal else SweepLeaseStatus(renewal=renewal, renew_time=time(now))


COST_BUDGET_SPENT: Final = "CostBudgetSpent"
"""Reason with which a sweep is suspended because the rest of spec.budget.costUSD is too small for a model request."""
MAX_COLUMN_CHARACTERS: Final = 60
MAX_UNKNOWN: Final = 4  # maximum number of unknown steps that the status lists


@dataclass(frozen=True)
class CreationError:
    """Why the next trial could not be created."""

    reason: str
    message: str


def started_status(sweep: TrialSweep, plan: SweepPlan, now: float, tasks: SweepTasksStatus | None = None) -> SweepStatus:
    """Return the status of a sweep before it creates its first trial. ``tasks`` is the resolved spec.tasksFrom."""
    total = plan.grid.total
    tasks_and_agents = f"{plural(len(plan.grid.tasks), 'task')}, {plural(len(plan.grid.agents), 'agent')}"
    message = f"{tasks_and_agents}, {plural(total, 'trial')}"
    fields: dict[str, Any] = {"start_time": time(now), "trials": SweepTrials(total=total), "tasks_from": tasks}
    fields |= {"lease": lease_status(sweep, now), "source_uid": plan.source.uid}
    return _with(sweep, "Pending", "SweepStarted", message, now, **fields)


def branches_planned(plan: SweepPlan, states: States, config_map: str, digest: str) -> SweepBranchesStatus:
    """Return the status of the branches.

    ``config_map`` and ``digest`` are the name and digest of the ConfigMap with the record of the ordinary trials' checkpoints.
    """
    branch = plan.spec.branch
    assert branch is not None
    return SweepBranchesStatus(
        trials=plan_branches.count_branches(plan.grid, branch, states),
        missing=plan_branches.count_missing_states(plan.grid, branch, states),
        unknown=[shortened(step) for step in plan_branches.unknown_steps(branch, states)[:MAX_UNKNOWN]],
        config_map=config_map,
        digest=digest,
    )


def suspended_before_start(sweep: TrialSweep, now: float) -> SweepStatus:
    """Return the status of a sweep that is suspended before its start."""
    return _with(sweep, "Suspended", "Suspended", "spec.suspend is true; set it to false to start", now)


def waiting_status(sweep: TrialSweep, reason: str, message: str, now: float) -> SweepStatus:
    """Return the status of a sweep that cannot start yet."""
    return _with(sweep, "Pending", reason, message, now)


def error_status(sweep: TrialSweep, reason: str, message: str, now: float) -> SweepStatus:
    """Return the status of an unfinished sweep whose reconcile failed. The phase stays the same, the reason is that of the
    error."""
    phase: Phase = next((known for known in get_args(Phase) if known == sweep.status.phase), "Pending")
    return _with(sweep, phase, reason, message, now, stalled=phase == "Running")


def failed_status(sweep: TrialSweep, reason: str, message: str, now: float) -> SweepStatus:
    """Return the status of a sweep that cannot run."""
    return _with(sweep, "Failed", reason, message, now, completion_time=time(now))


def reopened_status(sweep: TrialSweep, now: float) -> SweepStatus:
    """Return the status of a finished sweep that continues. The time since it finished does not count toward its deadline."""
    former, ended = sweep.status, sweep.status.completion_time
    idle = 0 if ended is None else max(0, round(now - ended.timestamp()))
    left = len(retries_of(sweep.spec.retries, former.trials.total)) - former.trials.retried
    message = f"{plural(left, 'trial runs', 'trials run')} again"
    status = _with(sweep, "Running", "Retrying", message, now, completion_time=None)
    return status.model_copy(update={"suspended_seconds": (status.suspended_seconds or 0) + idle or None})


def observed_status(sweep: TrialSweep) -> SweepStatus:
    """Return the status of a finished sweep whose spec was changed. Only observedGeneration changes."""
    return sweep.status.model_copy(update={"observed_generation": sweep.metadata.generation})


def to_json(status: SweepStatus) -> dict[str, Any]:
    """Return the status as JSON for the API server, without nulls and empty maps.

    If the map had entries before, a server-side apply of an empty map sets null, which the schema rejects (measured with Kubernetes
    1.35).
    """
    content = status.model_dump(mode="json", by_alias=True, exclude_none=True)
    return {name: value for name, value in content.items() if value != {}}


def urgent_fields(status: SweepStatus) -> object:
    """Return the status fields whose changes are written immediately. Writes of other fields (counts, messages) are throttled."""
    holds = [(condition.type, condition.status, condition.reason) for condition in status.conditions]
    return status.phase, status.observed_generation, holds, status.start_time, status.completion_time, status.weights


def budget_status(sweep: TrialSweep, now: float) -> SweepBudgetStatus | None:
    """Return the budget in effect. A changed budget starts now, so model requests that the former budget refused do not count."""
    if sweep.spec.budget is None:
        return None
    limit, known = sweep.spec.budget.cost_usd, sweep.status.budget
    return known if known is not None and known.cost_usd == limit else SweepBudgetStatus(cost_usd=limit, since=time(now))


def is_spent(budget: SweepBudgetStatus | None, counts: TrialCounts) -> bool:
    """Return whether the budget in effect refused a model request of a step.

    A step that started in the same second as the budget does not count, because the former budget may have refused its request. If
    it counted, the sweep would be suspended until a user raises the budget again. If the new budget is spent too, it refuses a
    request of a later step.
    """
    return budget is not None and counts.refused_at is not None and counts.refused_at > budget.since.timestamp()


def active_status(
    sweep: TrialSweep,
    plan: SweepPlan,
    counts: TrialCounts,
    halted: Halt | None,
    error: CreationError | None,
    budget: SweepBudgetStatus | None,
    now: float,
) -> SweepStatus:
    """Return the status of an active sweep after its next actions. ``error`` is why the next trial could not be created."""
    phase, reason, message = _where(sweep, counts, halted, budget)
    if error is not None and phase == "Running":
        reason, message = error.reason, error.message
    ended: dict[str, Any] = {"completion_time": time(now)} if phase in FINISHED_PHASES else {}
    agents = [
        SweepAgentStatus(name=name, counted=agent.counted, finished=agent.finished, passed=agent.passed, mean=agent.mean)
        for name, agent in zip(plan.grid.agents, counts.agents, strict=True)
    ]
    return _with(
        sweep, phase, reason, message, now,
        stalled=error is not None and phase == "Running",
        trials=_trials(counts),
        excluded=dict(sorted(counts.excluded.items())),
        scored_failures=dict(sorted(counts.scored.items())),
        agents=agents,
        score=_column(agents),
        pod_hours=round(counts.pod_hours, 4),
        cost_usd=None if counts.cost_usd is None else round(counts.cost_usd, 6),
        budget=budget,
        lease=lease_status(sweep, now),
        **ended,
    )  # fmt: skip


def _where(sweep: TrialSweep, counts: TrialCounts, halted: Halt | None, budget: SweepBudgetStatus | None) -> tuple[Phase, str, str]:
    """Return the sweep's phase, reason and message. A sweep that stopped some of its trials is Failed, not Complete."""
    cut_off = halted is not None and halted.stops and counts.stopped
    if counts.all_finished and not cut_off and not sweep.spec.open:
        return "Complete", "SweepComplete", f"{counts.counted} of {counts.total} trials count{_retried(counts)}{_unknown(sweep)}"
    if halted is not None and not counts.active:
        return "Failed", halted.reason, f"{halted.message}; {counts.created} of {counts.total} trials were created"
    spent = _spent_text(budget, counts) if budget is not None and is_spent(budget, counts) else ""
    if halted is not None:
        active = f"{plural(counts.active, 'trial is', 'trials are')} still active"
        return "Halting", halted.reason, "; ".join(filter(None, [halted.message, active, spent]))
    if sweep.spec.suspend:
        finishing = plural(counts.phases.get("Running", 0), "trial is finishing its", "trials are finishing their")
        return "Suspended", "Suspended", f"spec.suspend is true; {finishing} step"
    if spent:
        return "Suspended", COST_BUDGET_SPENT, spent
    follow = "; the branches follow when they have finished" if counts.unplanned else ""
    follow = "; spec.tasks may get more entries (spec.open)" if sweep.spec.open else follow
    return "Running", "Running", f"{counts.created} of {counts.total} trials were created{_retried(counts)}{follow}"


def _retried(counts: TrialCounts) -> str:
    return f", {counts.retried} of {counts.retries} retries were created" if counts.retries else ""


def _unknown(sweep: TrialSweep) -> str:
    names = sweep.status.branches.unknown if sweep.status.branches else []
    steps = f"; no task has the steps {', '.join(map(repr, names))} of spec.branch.at" if names else ""
    numbers = unknown_numbers(sweep.spec.retries, sweep.status.trials.total)
    return steps + (f"; the sweep has no trials {', '.join(map(str, numbers[:MAX_UNKNOWN]))} of spec.retries" if numbers else "")


def _spent_text(budget: SweepBudgetStatus, counts: TrialCounts) -> str:
    spent, most = counts.cost_usd or 0.0, counts.refused_usd
    known = "an unknown part" if counts.cost_usd is None else f"{spent:.6g}"
    used = f"the trials used {known} of {budget.cost_usd:g} US dollars"
    if most is None:
        return f"{used}, and a model request could cost more than the rest; raise spec.budget.costUSD to continue"
    least = math.ceil((spent + most) * 100) / 100
    return f"{used}, and a model request could have cost {most:.6g}; raise spec.budget.costUSD to {least:g} or more to continue"


def _trials(counts: TrialCounts) -> SweepTrials:
    return SweepTrials(
        total=counts.total,
        created=counts.created,
        active=counts.active,
        pending=counts.phases.get("Pending", 0),
        running=counts.phases.get("Running", 0),
        suspended=counts.phases.get("Suspended", 0),
        finished=counts.complete + counts.failed,
        complete=counts.complete,
        failed=counts.failed,
        deleted=counts.deleted,
        counted=counts.counted,
        retried=counts.retried,
    )


def _column(agents: Sequence[SweepAgentStatus]) -> str | None:
    """Return the agents' mean scores as text, with names if the sweep has several agents, and with counts if trials are
    excluded."""
    shown = [(agent.name, f"{agent.mean:.4g}{_coverage(agent)}") for agent in agents if agent.mean is not None]
    if not shown:
        return None
    text = ", ".join(mean if len(agents) == 1 else f"{name} {mean}" for name, mean in shown)
    return text if len(text) <= MAX_COLUMN_CHARACTERS else f"{text[: MAX_COLUMN_CHARACTERS - 3]}..."


def _coverage(agent: SweepAgentStatus) -> str:
    return "" if agent.counted == agent.finished else f" ({agent.counted} of {agent.finished})"


def _with(
    sweep: TrialSweep, phase: Phase, reason: str, message: str, now: float, *, stalled: bool = False, **fields: Any
) -> SweepStatus:
    former = sweep.status
    common: dict[str, Any] = {
        "observed_generation": sweep.metadata.generation,
        "phase": phase,
        "conditions": conditions(
            former.conditions, phase, reason, bounded(message), now, suspended=phase == "Suspended", stalled=stalled
        ),
    }
    if phase != "Suspended":
        common["suspended_seconds"] = round(suspended_seconds(former, now)) or None
    return former.model_copy(update={**common, **fields})
