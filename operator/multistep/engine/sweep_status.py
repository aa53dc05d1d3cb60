"""What a sweep does next, and its status: from its spec, what its trials come to, and the clock. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ..api.sweep import SweepAgentStatus, SweepStatus, SweepTasksStatus, SweepTrials, TrialSweep
from .lifecycle import suspended_seconds
from .status_conditions import Phase, conditions, time
from .status_size import bounded
from .sweep_trials import Plan
from .sweeps import Halt, Limits, Tally, TrialFacts, halt, tally, to_make

BUDGET_LOOK_SECONDS: Final = 30.0  # how often pods that go on working are counted, where there is a budget of pod-hours
MAX_COLUMN_CHARACTERS: Final = 60


@dataclass(frozen=True)
class Trouble:
    """Why the next trial could not be made, though it should be."""

    reason: str
    message: str


@dataclass(frozen=True)
class Next:
    """What to do: which trials to make, and to suspend, resume or stop (by number); what to write down, if nothing is in the way.

    early: from which number on they are made before their turn, ready and suspended. seconds: until something is due though nothing
    happens.
    """

    make: range
    early: int
    suspend: Collection[int]
    resume: Collection[int]
    stop: Collection[int]
    status: SweepStatus
    seconds: float | None


def decide(
    sweep: TrialSweep, plan: Plan, made: int, trials: Collection[TrialFacts], now: float, trouble: Trouble | None = None
) -> Next:
    """For a sweep that has begun, and is not at its end."""
    counts = tally(plan.grid, made, trials, now, plan.spec.scoring)
    limits = _limits(sweep, now)
    halted = halt(counts, limits, now)
    held = halted is not None or sweep.spec.suspend
    live = [each for each in trials if each.state == "Live"]
    waiting = sorted(each.number for each in live if each.suspend and each.by_sweep)
    room = 0 if sweep.spec.suspend else max(0, limits.parallelism - (len(live) - len(waiting)))
    make = range(0) if held else to_make(counts, limits)
    return Next(
        make=make,
        early=make.start + max(0, room - len(waiting)),
        suspend=[each.number for each in live if sweep.spec.suspend and not each.suspend],
        resume=waiting[:room],
        stop=[each.number for each in live if not each.stop] if halted and halted.reason == "DeadlineExceeded" else [],
        status=_reached(sweep, plan, counts, halted, trouble, now),
        seconds=_due(sweep, counts, limits, now),
    )


def begun(sweep: TrialSweep, plan: Plan, now: float, tasks: SweepTasksStatus | None = None) -> SweepStatus:
    """A sweep that is about to make its first trial. tasks: what spec.tasksFrom was resolved to."""
    total = len(plan.grid)
    message = f"{len(plan.grid.tasks)} tasks, {len(plan.grid.agents)} agents, {total} trials"
    fields: dict[str, Any] = {"start_time": time(now), "trials": SweepTrials(total=total), "tasks_from": tasks}
    return _with(sweep, "Pending", "SweepStarted", message, now, **fields)


def waits_to_begin(sweep: TrialSweep) -> bool:
    """Whether it is suspended before it asked for its tasks, which are to be those that are there when it begins."""
    return sweep.spec.suspend and sweep.status.start_time is None and sweep.spec.tasks_from is not None


def held(sweep: TrialSweep, now: float) -> SweepStatus:
    """A sweep that waits for spec.suspend to be false before it begins."""
    return _with(sweep, "Suspended", "Suspended", "spec.suspend is true; set it to false to start", now)


def waiting(sweep: TrialSweep, reason: str, message: str, now: float) -> SweepStatus:
    """A sweep that cannot begin yet."""
    return _with(sweep, "Pending", reason, message, now)


def failed(sweep: TrialSweep, reason: str, message: str, now: float) -> SweepStatus:
    """A sweep that cannot be run."""
    return _with(sweep, "Failed", reason, message, now, completion_time=time(now))


def noted(sweep: TrialSweep) -> SweepStatus:
    """A finished sweep whose spec was changed since: seen, and nothing about how it ended changes by that."""
    generation = sweep.metadata.generation
    seen = [each.model_copy(update={"observed_generation": generation}) for each in sweep.status.conditions]
    return sweep.status.model_copy(update={"observed_generation": generation, "conditions": seen})


def to_json(status: SweepStatus) -> dict[str, Any]:
    """The status as the API server takes it; absent stands for null."""
    return status.model_dump(mode="json", by_alias=True, exclude_none=True)


def headline(status: SweepStatus) -> object:
    """What of a status must not wait to be written: all but numbers and messages."""
    holds = [(each.type, each.status, each.reason) for each in status.conditions]
    return status.phase, status.observed_generation, holds, status.start_time, status.completion_time


def _limits(sweep: TrialSweep, now: float) -> Limits:
    spec, started = sweep.spec, sweep.status.start_time
    deadline = None
    if spec.active_deadline_seconds is not None and started is not None:
        deadline = started.timestamp() + suspended_seconds(sweep.status, now) + spec.active_deadline_seconds
    return Limits(spec.parallelism, spec.stop_when.pod_hours, spec.stop_when.failures, deadline, spec.prestart)


def _due(sweep: TrialSweep, counts: Tally, limits: Limits, now: float) -> float | None:
    running = limits.deadline is not None and not sweep.spec.suspend  # a suspension moves the deadline
    times = [limits.deadline - now] if running and limits.deadline is not None and now < limits.deadline else []
    if limits.pod_hours is not None and counts.live:
        times.append(BUDGET_LOOK_SECONDS)
    return min(times, default=None)


def _reached(sweep: TrialSweep, plan: Plan, counts: Tally, halted: Halt | None, trouble: Trouble | None, now: float) -> SweepStatus:
    phase, reason, message = _where(sweep, counts, halted)
    if trouble is not None and phase == "Running":
        reason, message = trouble.reason, trouble.message
    ended: dict[str, Any] = {"completion_time": time(now)} if phase in ("Complete", "Failed") else {}
    agents = [
        SweepAgentStatus(name=name, counted=each.counted, finished=each.finished, mean=each.mean)
        for name, each in zip(plan.grid.agents, counts.agents, strict=True)
    ]
    return _with(
        sweep, phase, reason, message, now,
        stalled=trouble is not None and phase == "Running",
        trials=_trials(counts),
        not_counted=dict(sorted(counts.excluded.items())),
        scored_failures=dict(sorted(counts.scored.items())),
        agents=agents,
        reward=_column(agents),
        pod_hours=round(counts.pod_hours, 4),
        **ended,
    )  # fmt: skip


def _where(sweep: TrialSweep, counts: Tally, halted: Halt | None) -> tuple[Phase, str, str]:
    """Phase, reason and message. What was stopped at the deadline did not run as it was meant to."""
    cut_off = halted is not None and halted.reason == "DeadlineExceeded" and counts.stopped
    if counts.over and not cut_off:
        return "Complete", "SweepComplete", f"{_counted(counts)} of {counts.total} trials count"
    if halted is not None and not counts.live:
        return "Failed", halted.reason, f"{halted.message}; {counts.made} of {counts.total} trials were created"
    if halted is not None:
        return "Halting", halted.reason, f"{halted.message}; {counts.live} trials are still active"
    if sweep.spec.suspend:
        return "Suspended", "Suspended", f"spec.suspend is true; {counts.phases.get('Running', 0)} trials are finishing their step"
    return "Running", "Running", f"{counts.made} of {counts.total} trials were created"


def _trials(counts: Tally) -> SweepTrials:
    return SweepTrials(
        total=counts.total,
        made=counts.made,
        live=counts.live,
        pending=counts.phases.get("Pending", 0),
        running=counts.phases.get("Running", 0),
        suspended=counts.phases.get("Suspended", 0),
        done=counts.complete + counts.failed,
        complete=counts.complete,
        failed=counts.failed,
        deleted=counts.deleted,
        counted=_counted(counts),
    )


def _counted(counts: Tally) -> int:
    return sum(each.counted for each in counts.agents)


def _column(agents: Sequence[SweepAgentStatus]) -> str | None:
    """Means as text, with how many trials count where some are excluded; of a single agent without its name."""
    shown = [(each.name, f"{each.mean:.4g}{_coverage(each)}") for each in agents if each.mean is not None]
    if not shown:
        return None
    text = ", ".join(mean if len(agents) == 1 else f"{name} {mean}" for name, mean in shown)
    return text if len(text) <= MAX_COLUMN_CHARACTERS else f"{text[: MAX_COLUMN_CHARACTERS - 3]}..."


def _coverage(agent: SweepAgentStatus) -> str:
    return "" if agent.counted == agent.finished else f" ({agent.counted} of {agent.finished})"


def _with(
    sweep: TrialSweep, phase: Phase, reason: str, message: str, now: float, *, stalled: bool = False, **fields: Any
) -> SweepStatus:
    former, generation = sweep.status, sweep.metadata.generation
    told: dict[str, Any] = {
        "observed_generation": generation,
        "phase": phase,
        "conditions": conditions(
            former.conditions, phase, reason, bounded(message), generation, now, suspended=phase == "Suspended", stalled=stalled
        ),
    }
    if phase != "Suspended":
        told["suspended_seconds"] = round(suspended_seconds(former, now)) or None
    return former.model_copy(update={**told, **fields})
