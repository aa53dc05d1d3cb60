"""Derives the outcome of a trial or a sweep from its status. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from multistep.api.sweep.sweep import SweepStatus, parse_sweep_status
from multistep.api.trial.score import Level, outcome_level, outcome_words
from multistep.api.trial.status import StepStatus, TrialStatus, holds
from multistep.api.trial.trial import parse_status
from multistep.engine.sweep.sweep_status import COST_BUDGET_SPENT
from multistep.kube.cluster_protocols import Object
from multistep.kube.resources import TRIALS, Resource


@dataclass(frozen=True)
class Outcome:
    """The outcome or progress of a trial or sweep."""

    phase: str
    why: str
    """A sentence on the outcome or progress, from a condition of the status."""
    faults: tuple[str, ...] = ()
    """The exceptions and failed gates of a trial, the excluded trials of a sweep, or the reason of a failure."""
    failed: bool = False
    """Whether the trial or sweep could not be run to its end."""


def outcome(status: TrialStatus) -> Outcome:
    """Return the outcome of a trial with this status."""
    if failed := holds(status, "Failed"):
        return Outcome("Failed", f"{failed.reason}: {failed.message}", (failed.message,), failed=True)
    if complete := holds(status, "Complete"):
        return Outcome("Complete", complete.message, tuple(_faults(status)))
    now = holds(status, "Reconciling")
    return Outcome(status.phase or "Submitted", f"{now.reason}: {now.message}" if now else "")


def outcome_of_sweep(status: SweepStatus) -> Outcome:
    """Return a sweep's outcome or progress. Excluded trials are reported as faults."""
    if failed := holds(status, "Failed"):
        return Outcome("Failed", f"{failed.reason}: {failed.message}", (failed.message,), failed=True)
    if complete := holds(status, "Complete"):
        excluded = status.trials.total - status.trials.counted
        faults = (f"{excluded} of {status.trials.total} trials are excluded",) if excluded else ()
        return Outcome("Complete", complete.message, faults)
    if is_out_of_budget(status) and (spent := holds(status, "Suspended")):
        return Outcome("Suspended", f"{spent.reason}: {spent.message}", (spent.message,), failed=True)
    now = holds(status, "Reconciling")
    return Outcome(status.phase or "Submitted", f"{now.reason}: {now.message}" if now else "")


def outcome_of(resource: Resource, found: Object) -> Outcome:
    """Return the outcome of a trial or a sweep."""
    return outcome(parse_status(found)) if resource == TRIALS else outcome_of_sweep(parse_sweep_status(found))


def is_out_of_budget(status: SweepStatus) -> bool:
    """Return whether the sweep is suspended because its budget is spent, and no trial is running or pending."""
    spent = holds(status, "Suspended")
    return spent is not None and spent.reason == COST_BUDGET_SPENT and not (status.trials.running or status.trials.pending)


def words(status: TrialStatus) -> str:
    """Return the outcome of a finished trial in words; "" while the trial is active."""
    if status.outcome is None:
        return ""
    return outcome_words(status.outcome, status.failure.class_ if status.failure else "")


def level(status: TrialStatus) -> Level:
    """Return the level of a trial's outcome, which determines its colour; "neutral" without an outcome."""
    return outcome_level(status.outcome) if status.outcome else "neutral"


def brief(status: TrialStatus) -> str:
    """Return a trial's progress or outcome on one line, without error messages."""
    found, failed = outcome(status), holds(status, "Failed")
    exception = status.exception or next((each.exception for each in reversed(status.own_steps) if each.exception), None)
    if failed:
        return failed.reason
    if found.phase == "Complete" and exception and exception.type in found.why:
        return found.why.partition(exception.type)[0] + exception.type
    return found.why


def _faults(status: TrialStatus) -> Iterator[str]:
    exception = status.exception
    if exception and not any(step.exception and step.exception.message == exception.message for step in status.own_steps):
        yield f"trial: {exception.type}: {exception.message}"
    for step in status.own_steps:
        yield from step_faults(step)


def step_faults(step: StepStatus) -> Iterator[str]:
    """Yield a text for a step's exception and a text for its failed gate, if any."""
    if step.exception:
        yield f"{step.name}: {step.exception.type}: {step.exception.message}"
    if step.gate is False:
        yield f"{step.name}: gate not met"
