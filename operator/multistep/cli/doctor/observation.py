"""What `multistep doctor` reads from a cluster, and what it concludes, as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

Object = Mapping[str, Any]
Verdict = Literal["ok", "warning", "fault", "unknown"]


@dataclass(frozen=True)
class Finding:
    """The result of one check. fix: what to do, "" if nothing is wrong."""

    check: str
    verdict: Verdict
    message: str
    fix: str = ""


@dataclass(frozen=True)
class Right:
    """A right that somebody needs. resource: as in RBAC, with its subresource; group: API group; what: what it is for."""

    verb: str
    resource: str
    group: str = ""
    what: str = ""

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}{f'.{self.group}' if self.group else ''}"


@dataclass
class Observation:
    """The state of a cluster and an installation. Fields that could not be read are None; ``errors`` has the reason by field.

    now: this machine's time; server_time: the API server's; version: Kubernetes' version; user: the user's name; crds: by name;
    operators: Deployments of operators; operator: the chosen one; pods: the operator's; claims: of its volumes, None for one that
    does not exist; quotas, trial_pods, trials: of the namespace; free_bytes: of the results volume; rights, operator_rights: if
    each is granted.
    """

    now: datetime
    namespace: str
    server_time: datetime | None = None
    version: str | None = None
    user: str | None = None
    crds: Mapping[str, Object] | None = None
    namespace_object: Object | None = None
    operators: Sequence[Object] | None = None
    operator: Object | None = None
    pods: Sequence[Object] | None = None
    lease: Object | None = None
    claims: Mapping[str, Object | None] | None = None
    storage_classes: Sequence[Object] | None = None
    gateways: Sequence[Object] | None = None
    free_bytes: float | None = None
    quotas: Sequence[Object] | None = None
    nodes: Sequence[Object] | None = None
    trial_pods: Sequence[Object] | None = None
    trials: Sequence[Object] | None = None
    rights: Mapping[Right, bool] | None = None
    operator_rights: Mapping[Right, bool] | None = None
    errors: dict[str, str] = field(default_factory=dict)


def settings_of(deployment: Object) -> dict[str, str]:
    """Return the environment variables of an operator's container that have a value."""
    containers = deployment["spec"]["template"]["spec"]["containers"]
    return {each["name"]: each["value"] for container in containers for each in container.get("env") or () if "value" in each}
