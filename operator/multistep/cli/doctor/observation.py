"""The state that `multistep doctor` reads from a cluster, and its findings, as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

Object = Mapping[str, Any]
Verdict = Literal["ok", "warning", "fault", "unknown"]


@dataclass(frozen=True)
class Finding:
    """The result of one check. fix: instruction for the user, "" if none is needed."""

    check: str
    verdict: Verdict
    message: str
    fix: str = ""


@dataclass(frozen=True)
class Right:
    """An RBAC permission. resource: RESOURCE or RESOURCE/SUBRESOURCE; group: API group; what: the action that needs the
    permission, for messages."""

    verb: str
    resource: str
    group: str = ""
    what: str = ""

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}{f'.{self.group}' if self.group else ''}"


@dataclass
class Observation:
    """The state of a cluster and an installation. Fields that could not be read are None; ``errors`` has the reason by field.

    now: this machine's time; server_time: the API server's time; version: of Kubernetes; user: the user's name; crds: CRDs by
    name; operators: all operators' Deployments; operator: the Deployment to check; pods: that operator's pods; claims: its
    PersistentVolumeClaims by name, None if one does not exist; quotas, trial_pods, trials: objects in ``namespace``; free_bytes:
    free space of the results volume; rights, operator_rights: whether the user and the operator have each right.
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
