"""What belongs to no trial: pods that nobody waits for, results of trials that are gone. Pure: the clock comes in.

Most of it never comes to be: what a trial is made of is owned by the trial, and Kubernetes removes it with its owner. Left
are pods that lost their owner reference (`kubectl delete --cascade=orphan`), pods that an operator which was thought dead made
for an attempt that is over, and what lies outside the cluster.
"""

from __future__ import annotations

from typing import Literal

from ..api.trial import MultiStepTrial
from .decisions import PodFacts

Fate = Literal["Stay", "MarkGone", "Unmark", "Remove"]


def pod_orphaned(pod: PodFacts, trial: MultiStepTrial | None, now: float, grace: float) -> str:
    """Why a pod is nobody's, "" if it is somebody's.

    trial: the one that the pod's owner reference names, read after the pod was seen; None: there is none. As a trial's status
    names a pod before it is made, a pod that is not named there can only be one that is not wanted any more. grace: seconds
    that every pod is left alone.
    """
    if pod.deleting or now - pod.created_at < grace:
        return ""
    if trial is None or trial.metadata.uid != pod.owner_uid:
        return "its trial is gone"
    status = trial.status
    if trial.metadata.deletion_timestamp is not None or status.phase is None:
        return ""  # it goes with its trial; or nobody has looked at the trial yet, or its status was lost
    named = {status.pod_name: status.pod_uid}
    if status.verifier is not None:
        named[status.verifier.pod_name] = status.verifier.pod_uid
    if pod.name not in named:
        return "its attempt or step is over"
    return "" if named[pod.name] in (None, pod.uid) else "it took the name of a pod that is gone"


def fate_of_results(*, alive: bool, gone_since: float | None, now: float, keep: float | None) -> Fate:
    """What is to become of a trial's results on the volume.

    alive: the trial is there; gone_since: when it was first seen to be gone, None: never; keep: seconds for which results
    outlive their trial, None: for ever. Results are never removed at the first sight of a trial's absence.
    """
    if alive:
        return "Stay" if gone_since is None else "Unmark"
    if gone_since is None:
        return "MarkGone"
    return "Remove" if keep is not None and now - gone_since >= keep else "Stay"
