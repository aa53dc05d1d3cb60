"""Sets the labels that queue a pod with Kueue, and reads whether Kueue queued or evicted a pod.

Kueue's webhook adds a scheduling gate to a pod with a queue. Kueue's controller removes the gate when it admits the pod. The
operator sets no gate itself, because in a cluster without Kueue the pod would never start. Kueue also adds a finalizer to the pod,
and removes it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from multistep.api.common.base_model import GROUP

QUEUE = "kueue.x-k8s.io/queue-name"
PRIORITY = "kueue.x-k8s.io/priority-class"
MANAGED = "kueue.x-k8s.io/managed"  # label of each pod that Kueue queued or admitted
VERIFIER_QUEUE = f"{GROUP}/verifier-queue"
EVICTED = "EvictedByKueue"
_TERMINATION = "TerminationTarget"  # the condition that Kueue sets before it deletes a pod


def queue_labels(trial: Mapping[str, str], template: Mapping[str, str], *, verifier: bool) -> dict[str, str]:
    """Return a pod's labels for Kueue, from the labels of the trial and of its pod template, which takes precedence.

    A verifier's pod has a queue of its own or none. While it is queued, the agent's pod keeps its quota, so trials that need a
    second pod from the same queue could deadlock.
    """
    given = {**trial, **template}
    queue = trial.get(VERIFIER_QUEUE) if verifier else given.get(QUEUE)
    if not queue:
        return {}
    return {QUEUE: queue} | ({PRIORITY: given[PRIORITY]} if given.get(PRIORITY) else {})


def without_queue_labels(template: Mapping[str, Any]) -> dict[str, Any]:
    """Return a pod template's metadata without the labels that ``queue_labels`` returns."""
    kept = {name: value for name, value in (template.get("labels") or {}).items() if name not in (QUEUE, PRIORITY)}
    return {**template, "labels": kept}


def queue_of(metadata: Mapping[str, Any]) -> str | None:
    """Return the name of the pod's queue, "" if the pod names none, None if Kueue does not manage the pod."""
    pod_labels = metadata.get("labels") or {}
    return pod_labels.get(QUEUE, "") if pod_labels.get(MANAGED) == "true" else None


def eviction_reason(conditions: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Return why Kueue evicts a pod, for example preemption, from the pod's conditions, None if Kueue does not evict it."""
    condition = conditions.get(_TERMINATION) or {}
    if condition.get("status") != "True":
        return None
    return ": ".join(text for text in (condition.get("reason"), condition.get("message")) if text) or "no reason given"
