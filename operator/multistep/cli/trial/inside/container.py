"""Finds the pod of a trial for `multistep shell` and `multistep cp`. If the trial has no running pod, the error gives advice."""

from __future__ import annotations

from dataclasses import dataclass

from multistep.api.trial.conditions import is_finished
from multistep.api.trial.trial import parse_status
from multistep.cli.cluster import Cluster, existing_trial
from multistep.cli.trial.outcome import outcome
from multistep.errors import NotFound, UsageError
from multistep.kube.resources import PODS
from multistep.pods.pod_identity import CONTAINER

__all__ = ["CONTAINER", "TrialPod", "find_pod"]


@dataclass(frozen=True)
class TrialPod:
    """A trial's pod whose container runs. active: the trial has not finished, so changes in the pod may affect its results."""

    namespace: str
    name: str
    active: bool


async def find_pod(cluster: Cluster, namespace: str, trial: str) -> TrialPod:
    """Return the trial's pod. Raises UsageError if the trial has no pod whose container runs."""
    status = parse_status(await existing_trial(cluster, namespace, trial))
    finished = is_finished(status)
    advice = "run it with --keep (spec.podCleanup: Never) to keep the pod" if finished else "try again when it runs"
    missing = UsageError(f"trial {trial} is {outcome(status).phase} and has no pod: {advice}")
    if status.pod_name is None:
        raise missing
    try:
        pod = await cluster.get(PODS, namespace, status.pod_name)
    except NotFound:
        raise missing from None
    if pod["metadata"]["uid"] != status.pod_uid or pod["metadata"].get("deletionTimestamp"):
        raise missing
    states = [each.get("state") or {} for each in pod.get("status", {}).get("containerStatuses") or () if each["name"] == CONTAINER]
    if not any("running" in each for each in states):
        raise UsageError(f"the container of trial {trial} does not run in pod {status.pod_name}: `kubectl describe pod` shows why")
    return TrialPod(namespace, status.pod_name, active=not finished)
