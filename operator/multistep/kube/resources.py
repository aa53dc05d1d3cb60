"""Kinds of objects and their paths on the API server. The operator's own kinds are constants, others come from discovery."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from multistep.api.common.base_model import API_VERSION


@dataclass(frozen=True)
class Resource:
    """A kind of object."""

    api_version: str
    """``v1`` or ``GROUP/VERSION``."""
    kind: str
    plural: str
    namespaced: bool = True

    def path(self, namespace: str | None = None, name: str = "", subresource: str = "") -> str:
        """Return the path of one object, or of all objects (of a namespace, if given)."""
        parts = [api_path(self.api_version)]
        if self.namespaced and namespace:
            parts += ["namespaces", quote(namespace, safe="")]
        parts += [self.plural, quote(name, safe=""), subresource]
        return "/".join(part for part in parts if part)


def api_path(api_version: str) -> str:
    """Return the path of an API version on the API server."""
    return f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"


TRIALS = Resource(API_VERSION, "MultiStepTrial", "multisteptrials")
SWEEPS = Resource(API_VERSION, "TrialSweep", "trialsweeps")
PODS = Resource("v1", "Pod", "pods")
CONFIG_MAPS = Resource("v1", "ConfigMap", "configmaps")
SECRETS = Resource("v1", "Secret", "secrets")
NAMESPACES = Resource("v1", "Namespace", "namespaces", namespaced=False)
EVENTS = Resource("events.k8s.io/v1", "Event", "events")
LEASES = Resource("coordination.k8s.io/v1", "Lease", "leases")
NETWORK_POLICIES = Resource("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies")
DISRUPTION_BUDGETS = Resource("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets")
API_RESOURCES = Resource("", "APIResourceList", "apiresources")  # a discovery document at the path of an API version
CRDS = Resource("apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions", namespaced=False)

KNOWN: Final[Mapping[tuple[str, str], Resource]] = {
    (resource.api_version, resource.kind): resource
    for resource in (
        TRIALS,
        SWEEPS,
        PODS,
        CONFIG_MAPS,
        SECRETS,
        NAMESPACES,
        EVENTS,
        LEASES,
        NETWORK_POLICIES,
        DISRUPTION_BUDGETS,
        CRDS,
    )
}


def from_discovery(api_version: str, listed: Mapping[str, Any]) -> dict[tuple[str, str], Resource]:
    """Return the kinds of an APIResourceList, without subresources such as ``pods/log``."""
    return {
        (api_version, kind["kind"]): Resource(api_version, kind["kind"], kind["name"], bool(kind["namespaced"]))
        for kind in listed.get("resources", ())
        if "/" not in kind["name"]
    }
