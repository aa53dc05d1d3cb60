"""The policies of a trial's pod: its NetworkPolicy and its PodDisruptionBudget. Pure functions."""

from __future__ import annotations

from typing import Any

from multistep.api.common import labels
from multistep.api.trial.trial import MultiStepTrial
from multistep.engine.plan.network_types import Network
from multistep.pods.pod_identity import LABEL_POD, LABEL_TRIAL, label_value, owner_reference
from multistep.pods.pod_manifest import PodRequest


def network_policy(request: PodRequest) -> dict[str, Any] | None:
    """Return the NetworkPolicy of one pod, under the pod's name; None if policies do not limit networks.

    Ingress is always denied: other pods could flood the runner's readiness port. The kubelet's probes still arrive:
    policies admit traffic from the pod's node. Egress is limited only if the task limits the network.
    """
    if request.settings.egress != "NetworkPolicy":
        return None
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {
            "name": request.name,
            "namespace": request.trial.metadata.namespace,
            "labels": {**labels.MANAGED, LABEL_TRIAL: label_value(request.trial.metadata.name)},
            "ownerReferences": [owner_reference(request.trial)],
        },
        "spec": {
            "podSelector": {"matchLabels": _own_labels(request.trial, request.name)},
            "ingress": [],
            **_egress(request.network),
        },
    }


def _egress(network: Network) -> dict[str, Any]:
    if not network.limited:
        return {"policyTypes": ["Ingress"]}
    to = [{"ipBlock": {"cidr": cidr}} for cidr in network.hosts]
    return {"policyTypes": ["Ingress", "Egress"], "egress": [{"to": to}] if to else []}  # an empty ``to`` would allow all egress


def disruption_budget_name(trial: MultiStepTrial, pod_name: str) -> str:
    """Return the budget's name. It contains the trial's uid, so that the operator can delete it without reading it first."""
    return f"{pod_name}-{trial.metadata.uid}"


def disruption_budget(request: PodRequest) -> dict[str, Any] | None:
    """Return the PodDisruptionBudget that makes a drain wait for one pod; None if drains may evict pods of trials.

    A pod is not ready while it has a result that the operator must fetch. The budget protects such a pod, too: the default of
    unhealthyPodEvictionPolicy ensures this.
    """
    if request.settings.drain != "Wait":
        return None
    trial = request.trial
    own = _own_labels(trial, request.name)
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {
            "name": disruption_budget_name(trial, request.name),
            "namespace": trial.metadata.namespace,
            "labels": {**labels.MANAGED, LABEL_TRIAL: own[LABEL_TRIAL]},
            "ownerReferences": [owner_reference(trial)],
        },
        "spec": {"minAvailable": 1, "selector": {"matchLabels": own}},
    }


def _own_labels(trial: MultiStepTrial, name: str) -> dict[str, str]:
    """Return labels that select one pod."""
    return {LABEL_TRIAL: label_value(trial.metadata.name), LABEL_POD: name}
