"""Derives a trial's outcome from its status: its phase, its faults and the command's exit code. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from multistep.api.trial.score import Level, outcome_level, outcome_words
from multistep.api.trial.status import StepStatus, TrialStatus, holds
from multistep.cli.exits import Exit


@dataclass(frozen=True)
class Outcome:
    """The outcome or progress of a trial or sweep. why: explanation in one sentence; faults: reasons for a non-zero exit code."""

    exit: Exit
    phase: str
    why: str
    faults: tuple[str, ...] = ()


def outcome(status: TrialStatus) -> Outcome:
    """Return the outcome of a trial with this status."""
    if failed := holds(status, "Failed"):
        return Outcome(Exit.FAILED, "Failed", f"{failed.reason}: {failed.message}", (failed.message,))
    if complete := holds(status, "Complete"):
        found = tuple(_faults(status))
        return Outcome(Exit.FAULT if found else Exit.OK, "Complete", complete.message, found)
    now = holds(status, "Reconciling")
    return Outcome(Exit.OK, status.phase or "Submitted", f"{now.reason}: {now.message}" if now else "")


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
