"""Protocols of the cluster calls that the operator makes. ``Client`` implements them; tests/support has a fake.

Objects are plain dicts as the API server sends them: the operator reads many of them, and only a few fields of each.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from multistep.kube.resources import TRIALS, Resource

Object = dict[str, Any]

FIELD_MANAGER = "multistep"
Propagation = Literal["Background", "Foreground", "Orphan"]


@dataclass(frozen=True)
class ExitStatus:
    """How a command run by exec ended. code: None if the API server reported no exit code (message has its report)."""

    code: int | None
    message: str = ""


class ExecStream(Protocol):
    """stdin and stdout of a command in a container. Every method raises StreamLost if the connection is lost."""

    @property
    def status(self) -> ExitStatus | None:
        """How the command ended; None while it runs, and if the connection was lost."""

    @property
    def exit_details(self) -> str:
        """The last bytes of stderr and the exit message, for errors."""

    async def send(self, data: bytes) -> None:
        """Write data to stdin; return when the send buffer has room again."""

    async def send_eof(self) -> None:
        """Close stdin; stdout stays open."""

    async def receive(self) -> bytes:
        """Return the next bytes of stdout; b"" at its end, when status is set."""

    async def close(self) -> None:
        """Close the connection; the command reads end of file on stdin. Never raises; idempotent."""


class Cluster(Protocol):
    """The calls the operator makes. Each may raise ClusterError (NotFound, Conflict, Unavailable).

    A write that raised Unavailable may have succeeded: read the object before the next write.
    """

    async def get_trial(self, namespace: str, name: str) -> Object: ...

    async def list_trials(self, namespace: str | None = None, *, label_selector: str = "") -> list[Object]: ...

    async def list_metadata(self, resource: Resource, namespace: str | None = None, *, label_selector: str = "") -> list[Object]:
        """Return the metadata of all objects of a kind (of a namespace, if given)."""

    def each_trial(self, namespace: str, label_selector: str) -> AsyncIterator[Object]:
        """Yield all trials with these labels, reading a page at a time: they may not all fit in memory."""

    async def apply_status(
        self,
        namespace: str,
        name: str,
        *,
        uid: str,
        resource_version: str,
        status: Mapping[str, Any],
        field_manager: str = FIELD_MANAGER,
        resource: Resource = TRIALS,
    ) -> Object:
        """Write the whole status of a trial or a sweep and return the object. Raises Conflict if resource_version is stale."""

    async def patch_trial(self, namespace: str, name: str, changes: Mapping[str, Any]) -> Object:
        """Merge changes into a trial. Raises Conflict if they contain a metadata.uid that is not the trial's."""

    async def delete_trial(self, namespace: str, name: str, *, uid: str = "", propagation: Propagation = "Background") -> bool: ...

    async def get_sweep(self, namespace: str, name: str) -> Object: ...

    async def delete_sweep(self, namespace: str, name: str, *, uid: str) -> bool: ...

    async def get_pod(self, namespace: str, name: str) -> Object: ...

    async def list_pods(self, namespace: str | None = None, *, label_selector: str = "") -> list[Object]: ...

    async def create_pod(self, pod: Mapping[str, Any]) -> Object: ...

    async def delete_pod(self, namespace: str, name: str, *, uid: str = "", grace_period_seconds: int | None = None) -> bool:
        """Request the pod's deletion; return False if it does not exist. Raises Conflict if the pod has another uid."""

    async def get_config_map(self, namespace: str, name: str) -> Object: ...

    async def get_secret(self, namespace: str, name: str) -> Object: ...

    async def get_network_policy(self, namespace: str, name: str) -> Object: ...

    async def delete_disruption_budget(self, namespace: str, name: str) -> bool:
        """Request a PodDisruptionBudget's deletion; return False if it does not exist."""

    async def create(self, manifest: Mapping[str, Any], *, field_manager: str = FIELD_MANAGER) -> Object:
        """Create an object of any kind (a NetworkPolicy, a Lease, ...)."""

    async def create_event(
        self,
        regarding: Mapping[str, Any],
        *,
        reason: str,
        message: str,
        type: Literal["Normal", "Warning"] = "Normal",
        action: str = "Reconcile",
    ) -> None:
        """Emit an Event about an object. regarding: the whole object, or a reference."""

    async def open_exec(self, namespace: str, pod: str, container: str, argv: Sequence[str]) -> ExecStream:
        """Start an exec session: run argv in a container, with stdin and stdout open."""
