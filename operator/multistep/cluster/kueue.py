"""Kueue's contract for plain pods, as far as it is ours to keep: which queue a pod waits in, and what Kueue did to it.

Its webhook holds a pod with a queue back by a scheduling gate; its controller takes the gate away when the queue has room. Nothing
here sets a gate: in a cluster without Kueue such a pod would wait for ever. The finalizer it puts on pods is its own to remove.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .resources import GROUP

QUEUE = "kueue.x-k8s.io/queue-name"
PRIORITY = "kueue.x-k8s.io/priority-class"
MANAGED = "kueue.x-k8s.io/managed"  # on each pod that it holds back, or has
VERIFIER_QUEUE = f"{GROUP}/verifier-queue"
EVICTED = "EvictedByKueue"
_TERMINATION = "TerminationTarget"  # the condition that it sets before it deletes a pod


def labels(trial: Mapping[str, str], template: Mapping[str, str], *, verifier: bool) -> dict[str, str]:
    """What one of a trial's pods says to Kueue, of the labels of the trial and of its pod template, which goes before.

    A verifier's pod waits in a queue of its own or in none: while it waits, the agent's pod keeps what it was admitted with, and
    trials that wait in the same queue for a second pod could keep each other from it for ever.
    """
    given = {**trial, **template}
    queue = trial.get(VERIFIER_QUEUE) if verifier else given.get(QUEUE)
    if not queue:
        return {}
    return {QUEUE: queue} | ({PRIORITY: given[PRIORITY]} if given.get(PRIORITY) else {})


def without(template: Mapping[str, Any]) -> dict[str, Any]:
    """A template's metadata less what ``labels`` has decided about."""
    kept = {name: value for name, value in (template.get("labels") or {}).items() if name not in (QUEUE, PRIORITY)}
    return {**template, "labels": kept}


def queue(metadata: Mapping[str, Any]) -> str | None:
    """The queue that Kueue has a pod in; None where it has nothing to do with it, "" if the pod names none."""
    found = metadata.get("labels") or {}
    return found.get(QUEUE, "") if found.get(MANAGED) == "true" else None


def eviction(conditions: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Why Kueue takes a pod away (preempted, say), by the pod's conditions; None if it does not."""
    told = conditions.get(_TERMINATION) or {}
    if told.get("status") != "True":
        return None
    return ": ".join(each for each in (told.get("reason"), told.get("message")) if each) or "it does not say why"
