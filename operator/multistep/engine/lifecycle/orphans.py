"""Garbage collection of orphans: pods that no trial uses, and results of deleted trials. Pure: the clock is an argument.

Kubernetes deletes most objects of a trial with their owner. The operator deletes the rest: pods without an owner reference
(`kubectl delete --cascade=orphan`), pods that a former leader created for a finished attempt, and results outside the cluster.
"""

from __future__ import annotations

from typing import Literal

from multistep.api.trial.trial import MultiStepTrial
from multistep.engine.lifecycle.decisions import PodFacts

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
