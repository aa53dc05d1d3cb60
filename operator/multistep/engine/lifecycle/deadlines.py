"""Fails trials with spec.stop or an exceeded spec.activeDeadlineSeconds. Pure functions: the current time is an argument."""

from __future__ import annotations

from multistep.api.trial.trial import MultiStepTrial
from multistep.engine.lifecycle.decisions import Fail
from multistep.engine.lifecycle.suspensions import suspended_seconds, suspended_since

STOPPED = "Stopped"
DEADLINE_EXCEEDED = "DeadlineExceeded"


def cut_short(trial: MultiStepTrial, now: float) -> Fail | None:
    """Return the failure of a trial with spec.stop or a deadline that has passed; None for other trials."""
    if trial.spec.stop:
        return Fail(STOPPED, "the trial was stopped: spec.stop is true")
    limit, left = trial.spec.active_deadline_seconds, _active_seconds_left(trial, now)
    if left is None or left > 0:
        return None
    return Fail(DEADLINE_EXCEEDED, f"the trial was active for longer than spec.activeDeadlineSeconds = {limit}")


def next_deadline(trial: MultiStepTrial, now: float) -> float | None:
    """Return the seconds until the trial's deadline; None if it has no deadline, or while it is suspended."""
    left = _active_seconds_left(trial, now)
    return None if left is None or suspended_since(trial.status) is not None else max(0.0, left)


def _active_seconds_left(trial: MultiStepTrial, now: float) -> float | None:
    limit, start = trial.spec.active_deadline_seconds, trial.status.start_time
    return None if limit is None or start is None else start.timestamp() + limit + suspended_seconds(trial.status, now) - now
