"""The RBAC permissions that the user and the operator need, and a review of which of them are granted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from multistep.api.common.base_model import GROUP
from multistep.kube.client import ClusterClient


@dataclass(frozen=True)
class Permission:
    """An RBAC permission."""

    verb: str
    resource: str
    """RESOURCE or RESOURCE/SUBRESOURCE."""
    group: str = ""
    """The API group."""
    what: str = ""
    """The action that needs the permission, for messages."""

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}{f'.{self.group}' if self.group else ''}"


USER_PERMISSIONS: Final = (
    Permission("create", "multisteptrials", GROUP, "run trials"),
    Permission("get", "multisteptrials", GROUP, "show trials"),
    Permission("list", "multisteptrials", GROUP, "list trials"),
    Permission("watch", "multisteptrials", GROUP, "follow trials"),
    Permission("patch", "multisteptrials", GROUP, "stop trials"),
    Permission("create", "trialsweeps", GROUP, "run sweeps"),
    Permission("get", "trialsweeps", GROUP, "show sweeps"),
    Permission("patch", "configmaps", "", "bring a task into the cluster"),
    Permission("patch", "secrets", "", "give variables to a trial"),
)
OPERATOR_PERMISSIONS: Final = (
    *(Permission(verb, "multisteptrials", GROUP) for verb in ("get", "list", "watch", "create", "patch", "delete")),
    *(Permission(verb, "trialsweeps", GROUP) for verb in ("get", "list", "watch", "delete")),
    Permission("patch", "multisteptrials/status", GROUP),
    Permission("patch", "trialsweeps/status", GROUP),
    *(Permission(verb, "pods") for verb in ("get", "list", "watch", "create", "delete")),
    *(Permission(verb, "pods/exec") for verb in ("get", "create")),
    Permission("get", "pods/log"),
    *(Permission(verb, "configmaps") for verb in ("get", "create")),
    Permission("create", "events", "events.k8s.io"),
)


async def granted(
    client: ClusterClient, permissions: Sequence[Permission], namespace: str, user: str | None
) -> dict[Permission, bool]:
    """Return whether a user has each permission in the namespace, according to the API server.

    user: the user name of a ServiceAccount, or None for the current user.
    """
    found = {}
    for each in permissions:
        resource, _, subresource = each.resource.partition("/")
        asked = {"verb": each.verb, "group": each.group, "resource": resource, "subresource": subresource, "namespace": namespace}
        spec: dict[str, Any] = {"resourceAttributes": asked}
        if user is not None:
            place = user.split(":")[2]
            groups = ["system:serviceaccounts", f"system:serviceaccounts:{place}", "system:authenticated"]
            spec |= {"user": user, "groups": groups}
        kind = "SelfSubjectAccessReview" if user is None else "SubjectAccessReview"
        review = {"apiVersion": "authorization.k8s.io/v1", "kind": kind, "metadata": {}, "spec": spec}
        found[each] = bool((await client.create(review))["status"].get("allowed"))
    return found
