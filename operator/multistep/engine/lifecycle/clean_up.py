"""Decides when a finished trial and its pods are deleted. Pure: the clock is an argument."""

from __future__ import annotations

from datetime import datetime

from multistep.api.trial.failure_table import POD_UNRESPONSIVE, RESULT_UNKNOWN
from multistep.api.trial.status import holds, is_finished
from multistep.api.trial.trial import MultiStepTrial
from multistep.engine.lifecycle.decisions import CleanUp, Situation
from multistep.engine.lifecycle.stop_and_suspend import DEADLINE_EXCEEDED, STOPPED

_CUT_SHORT = frozenset({STOPPED, DEADLINE_EXCEEDED, RESULT_UNKNOWN, POD_UNRESPONSIVE})  # processes may still run in the pod


def clean_up(s: Situation) -> CleanUp | None:
    """Return when to delete a finished trial and its pods, or None for an active trial."""
    if not is_finished(s.trial.status):
        return None
    return CleanUp(_pod_removal(s), _seconds_left(s, s.trial.spec.ttl_seconds_after_finished))


def needs_inspection(trial: MultiStepTrial) -> bool:
    """Return whether podCleanup OnSuccess retains the pod, because the trial has the condition Failed or an exception."""
    failed = holds(trial.status, "Failed") is not None
    return failed or trial.status.exception is not None or any(step.exception for step in trial.status.steps)


def _pod_removal(s: Situation) -> float | None:
    """Return the seconds until the finished trial's pods are deleted, None if they are retained or no longer exist.

    The pod of a trial that was stopped or missed its deadline is always deleted, because its processes would keep running. A pod
    that Kueue admitted uses quota of its queue while it exists, so it is retained for at most podTTLSecondsAfterFinished.
    """
    spec = s.trial.spec
    if not any(pod and s.owns(pod) and not pod.deleting for pod in (s.pod, s.verifier)):
        return None
    if any(condition.type == "Failed" and condition.reason in _CUT_SHORT for condition in s.trial.status.conditions):
        return 0.0
    kept = spec.pod_cleanup == "Never" or (spec.pod_cleanup == "OnSuccess" and needs_inspection(s.trial))
    if kept and not any(pod and pod.queue is not None for pod in (s.pod, s.verifier)):
        return None
    return _seconds_left(s, spec.pod_ttl_seconds_after_finished or 0)


def _seconds_left(s: Situation, ttl: float | None) -> float | None:
    end: datetime | None = s.trial.status.completion_time
    if ttl is None or end is None:
        return None
    return max(0.0, end.timestamp() + ttl - s.now)
