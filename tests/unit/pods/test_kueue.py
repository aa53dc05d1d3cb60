"""Test the Kueue labels of a trial's pods, and the facts that the operator reads from pods that Kueue gates or evicts."""

from __future__ import annotations

from typing import Any

import pytest

from multistep.api.task.task_toml import EnvironmentConfig
from multistep.api.trial.status import VerifierStatus
from multistep.api.trial.trial import parse_trial
from multistep.kube.cluster_protocols import Object
from multistep.pods import pod_manifest as pods
from multistep.pods.pod_facts import pod_facts
from multistep.settings import Settings

QUEUE, PRIORITY = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/priority-class"
OWN = {"multistep.dev/verifier-queue": "judges"}


def labels(trial: dict[str, str], template: dict[str, str] | None = None, *, verifier: bool = False) -> dict[str, str]:
    """Return the Kueue labels that a trial's pod gets. trial, template: labels of the trial and of its pod template."""
    spec: dict[str, Any] = {"task": {"inline": {"config": {}}}}
    if template is not None:
        spec["environment"] = {"podTemplate": {"metadata": {"labels": {"team": "a", **template}}}}
    found = parse_trial({"metadata": {"name": "t", "namespace": "n", "uid": "u", "labels": trial}, "spec": spec})
    apart = VerifierStatus(pod_name="t-1-v0") if verifier else None
    made = pods.pod_manifest(pods.PodRequest(found, EnvironmentConfig(), "img", "task", Settings(), verifier=apart))
    kept: dict[str, str] = made["metadata"]["labels"]
    assert template is None or kept["team"] == "a"
    return {name: value for name, value in kept.items() if "kueue" in name}


@pytest.mark.parametrize(
    ("trial", "template", "agents", "verifiers"),
    [
        ({}, None, {}, {}),
        ({"other": "x"}, {}, {}, {}),
        ({QUEUE: "q"}, None, {QUEUE: "q"}, {}),
        ({QUEUE: "q", PRIORITY: "p"}, {}, {QUEUE: "q", PRIORITY: "p"}, {}),
        ({QUEUE: "q"}, {QUEUE: "of-the-template"}, {QUEUE: "of-the-template"}, {}),
        ({QUEUE: "q", PRIORITY: "p", **OWN}, {}, {QUEUE: "q", PRIORITY: "p"}, {QUEUE: "judges", PRIORITY: "p"}),
        (OWN, {QUEUE: "q"}, {QUEUE: "q"}, {QUEUE: "judges"}),
        ({PRIORITY: "p"}, {}, {}, {}),
    ],
)
def test_the_agents_pod_waits_in_the_trials_queue_and_the_verifiers_in_its_own_or_in_none(
    trial: dict[str, str], template: dict[str, str] | None, agents: dict[str, str], verifiers: dict[str, str]
) -> None:
    assert labels(trial, template) == agents
    assert labels(trial, template, verifier=True) == verifiers


def pod(labels: dict[str, str], *conditions: Object, gates: tuple[str, ...] = ()) -> Object:
    metadata = {"name": "t-1", "namespace": "n", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z", "labels": labels}
    return {
        "metadata": metadata,
        "spec": {"schedulingGates": [{"name": each} for each in gates]},
        "status": {"conditions": conditions},
    }


MANAGED = {"kueue.x-k8s.io/managed": "true"}


@pytest.mark.parametrize(
    ("found", "queue"),
    [({QUEUE: "q"}, None), (MANAGED, ""), ({QUEUE: "q", **MANAGED}, "q"), ({"kueue.x-k8s.io/managed": "no"}, None)],
)
def test_a_pod_is_in_a_queue_only_where_kueue_has_taken_it(found: dict[str, str], queue: str | None) -> None:
    assert pod_facts(pod(found)).queue == queue


def test_all_gates_are_seen() -> None:
    assert pod_facts(pod({}, gates=("a", "b"))).gates == ("a", "b")


@pytest.mark.parametrize(
    ("reported", "message"),
    [
        ({"reason": "WorkloadEvictedDueToPreempted", "message": "to make room"}, "WorkloadEvictedDueToPreempted: to make room"),
        ({"message": "to make room"}, "to make room"),
        ({}, "no reason given"),
    ],
)
def test_an_eviction_by_kueue_has_its_reason(reported: Object, message: str) -> None:
    target = {"type": "TerminationTarget", "status": "True", **reported}
    found = pod_facts(pod(MANAGED, target))
    assert (found.disruption, found.message) == ("EvictedByKueue", message)
    assert pod_facts(pod({}, target)).disruption == ""  # a pod without Kueue's label was not evicted by Kueue
    assert pod_facts(pod(MANAGED, {**target, "status": "False"})).disruption == ""
