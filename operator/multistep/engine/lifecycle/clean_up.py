"""Decides when a finished trial and its pods are deleted, and which pods and results are orphans. Pure: the clock is an argument.

Kubernetes deletes most objects of a trial with their owner. The operator deletes the rest: pods without an owner reference
(`kubectl delete --cascade=orphan`), pods that a former leader created for a finished attempt, and results outside the cluster.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from multistep.api.trial.failure_table import POD_UNRESPONSIVE, RESULT_UNKNOWN
from multistep.api.trial.status import holds, is_finished
from multistep.api.trial.trial import MultiStepTrial
from multistep.engine.lifecycle.decisions import CleanUp, PodFacts, Situation
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


Fate = Literal["Stay", "MarkGone", "Unmark", "Remove"]


def pod_orphaned(pod: PodFacts, trial: MultiStepTrial | None, now: float, grace: float) -> str:
    """Return why a pod is an orphan, "" if it is none.

    ``trial`` is the trial that the pod's owner reference names, read after the pod, or None if that trial does not exist. The
    status names each pod before the operator creates it, except the first pod, which it names soon after its creation. So a pod
    that the status of a started or finished trial does not name is no longer needed. A pod younger than ``grace`` seconds is never
    an orphan.
    """
    if pod.deleting or now - pod.created_at < grace:
        return ""
    if trial is None or trial.metadata.uid != pod.owner_uid:
        return "its trial does not exist"
    status = trial.status
    if trial.metadata.deletion_timestamp is not None or status.phase is None:
        return ""  # Kubernetes deletes the pod with its trial, or the trial has no status that could name the pod
    if status.attempt is None and status.phase == "Pending":
        return ""  # the trial's next reconcile adopts the pod
    named = {status.pod_name: status.pod_uid}
    if status.verifier is not None:
        named[status.verifier.pod_name] = status.verifier.pod_uid
    if pod.name not in named:
        return "its attempt or step is finished"
    return "" if named[pod.name] in (None, pod.uid) else "it has the name of a pod that was deleted"


def builder_orphaned(created_at: float, *, wanted: bool, deleting: bool, now: float, grace: float) -> bool:
    """Return whether a builder's pod is an orphan, because no trial waits for its image.

    A pod younger than ``grace`` seconds is never an orphan.
    """
    return not wanted and not deleting and now - created_at >= grace


def fate_of_results(*, alive: bool, gone_since: float | None, now: float, keep: float | None) -> Fate:
    """Return what to do with a trial's results on the volume.

    ``alive`` is whether the trial exists. ``gone_since`` is the time at which the garbage collector first found the trial missing,
    None if it never did. ``keep`` is the retention in seconds after that time, None for unlimited. Results are never deleted when
    the trial is first found missing.
    """
    if alive:
        return "Stay" if gone_since is None else "Unmark"
    if gone_since is None:
        return "MarkGone"
    return "Remove" if keep is not None and now - gone_since >= keep else "Stay"
