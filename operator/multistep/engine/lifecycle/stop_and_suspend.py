"""Decides whether a trial is stopped, past its deadline or suspended. All functions are pure.

The causes are spec.stop, spec.activeDeadlineSeconds, spec.suspend, scheduling gates of the pod, and limits on concurrent trials per
model.
"""

from __future__ import annotations

from multistep.api.sweep.sweep import SweepStatus
from multistep.api.trial.status import Condition, TrialStatus, holds
from multistep.api.trial.trial import MultiStepTrial
from multistep.engine.lifecycle.decisions import Fail

SUSPENDED = "Suspended"  # reason of an attempt that ended because its pod was deleted during a suspension
SWEEP_BUDGET_SPENT = "SweepBudgetSpent"  # reason of an attempt whose model request could have exceeded the sweep's budget
QUEUED_BY_KUEUE = "QueuedByKueue"
SCHEDULING_GATED = "SchedulingGated"
QUEUED_FOR_MODEL = "QueuedForModel"
RESULTS_NOT_WRITABLE = "ResultsNotWritable"
WAITS_FOR_VERIFIERS = "WaitsForVerifiers"
# Reasons of the condition Suspended if a queue or the results volume makes the trial wait. spec.suspend leads to other reasons.
_GATED_REASONS = frozenset({QUEUED_BY_KUEUE, SCHEDULING_GATED, QUEUED_FOR_MODEL, RESULTS_NOT_WRITABLE, WAITS_FOR_VERIFIERS})


def must_have_no_pod(trial: MultiStepTrial) -> bool:
    """Return whether the trial is suspended and must not get a pod. The operator reads its task only after it is resumed."""
    waits = trial.spec.suspend and not prestarts(trial)
    return waits and not trial.spec.stop and trial.status.pod_uid is None


def prestarts(trial: MultiStepTrial) -> bool:
    """Return whether the trial gets a pod while it is suspended (spec.prestart).

    Only the first attempt gets a pod early. If this pod fails or is deleted, the operator creates the next one after the trial is
    resumed.
    """
    return trial.spec.prestart and not trial.status.attempts


def is_suspended(trial: MultiStepTrial) -> bool:
    """Return whether the status reports that spec.suspend suspended the trial. It then has no pod, or is paused between steps."""
    since = suspended_since(trial.status)
    return since is not None and since.reason not in _GATED_REASONS


def suspension(trial: MultiStepTrial) -> tuple[str, str]:
    """Return reason and message of the condition of a suspended trial.

    The message has the trial's state and the effect of setting spec.suspend to false.
    """
    status = trial.status
    if status.attempt is None:
        return "Suspended", "spec.suspend is true; set it to false to start"
    if status.pod_uid is None:
        start = f"continue after step {status.resumed.after}" if status.resumed else "start at step 1"
        return "Released", f"no pod is retained; set spec.suspend to false to {start}, as attempt {status.attempt}"
    where = f"after step {status.current_step}" if status.current_step else "before the first step"
    if trial.spec.suspend_policy != "Pause":
        return "Paused", f"{where}; pod {status.pod_name} is being released"
    return "Paused", f"{where}; pod {status.pod_name} is retained; set spec.suspend to false to resume with the next step"


def suspended_seconds(status: TrialStatus | SweepStatus, now: float) -> float:
    """Return the seconds for which a trial or sweep was suspended, or a trial's pod was gated, since its start."""
    since, before = suspended_since(status), status.suspended_seconds or 0.0
    if since is None or status.start_time is None:
        return before
    return before + max(0.0, now - since.last_transition_time.timestamp())


def suspended_since(status: TrialStatus | SweepStatus) -> Condition | None:
    return holds(status, "Suspended")


STOPPED = "Stopped"
DEADLINE_EXCEEDED = "DeadlineExceeded"


def stop_or_deadline(trial: MultiStepTrial, now: float) -> Fail | None:
    """Return the failure of a trial that has spec.stop or has missed its deadline, None for other trials."""
    if trial.spec.stop:
        return Fail(STOPPED, "the trial was stopped: spec.stop is true")
    limit, left = trial.spec.active_deadline_seconds, _active_seconds_left(trial, now)
    if left is None or left > 0:
        return None
    return Fail(DEADLINE_EXCEEDED, f"the trial was active for longer than spec.activeDeadlineSeconds = {limit}")


def next_deadline(trial: MultiStepTrial, now: float) -> float | None:
    """Return the seconds until the trial's deadline, None if it has no deadline or is suspended."""
    left = _active_seconds_left(trial, now)
    return None if left is None or suspended_since(trial.status) is not None else max(0.0, left)


def _active_seconds_left(trial: MultiStepTrial, now: float) -> float | None:
    limit, start = trial.spec.active_deadline_seconds, trial.status.start_time
    return None if limit is None or start is None else start.timestamp() + limit + suspended_seconds(trial.status, now) - now
