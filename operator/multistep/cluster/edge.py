"""What the operator needs of a cluster, as protocols: ``Client`` is the real one, tests/support has a fake.

Objects are plain dicts as the API server sends them: they are many, and only a few of their fields are looked at.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from .resources import TRIALS, Resource

Object = dict[str, Any]

FIELD_MANAGER = "multistep"
Propagation = Literal["Background", "Foreground", "Orphan"]


@dataclass(frozen=True)
class ExitStatus:
    """How a command run by exec ended. code: None when the cluster did not tell a number (message says what)."""

    code: int | None
    message: str = ""


class ExecStream(Protocol):
    """stdin and stdout of a command in a container. Every method raises StreamLost when the connection broke."""

    @property
    def status(self) -> ExitStatus | None:
        """How the command ended; None before the end, and for ever when the connection was lost."""

    @property
    def last_words(self) -> str:
        """The end of what the command wrote on stderr, and how it ended: for messages."""

    async def send(self, data: bytes) -> None:
        """Give data to stdin; returns when there is room for more."""

    async def send_eof(self) -> None:
        """End stdin; stdout goes on."""

    async def receive(self) -> bytes:
        """The next bytes of stdout, b"" at its end (then status is set)."""

    async def close(self) -> None:
        """Let go of the connection; the command sees its stdin end. Never raises, may be called twice."""


class Cluster(Protocol):
    """The calls the operator makes. Each may raise ClusterError (NotFound, Conflict, Unavailable).

    A write that raised Unavailable may have happened: look again before anything else.
    """

    async def get_trial(self, namespace: str, name: str) -> Object: ...

    async def list_trials(self, namespace: str | None = None, *, label_selector: str = "") -> list[Object]: ...

    async def list_metadata(self, resource: Resource, namespace: str | None = None, *, label_selector: str = "") -> list[Object]:
        """The metadata of all objects of a kind (of a namespace, if given), and nothing else of them."""

    def each_trial(self, namespace: str, label_selector: str) -> AsyncIterator[Object]:
        """All trials with these labels, one after another: there may be too many to hold."""

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
        """Write the whole status of a trial, or a sweep, if it is still as it was at resource_version. Returns it."""

    async def patch_trial(self, namespace: str, name: str, changes: Mapping[str, Any]) -> Object:
        """Merge changes into a trial. Raises Conflict if they name a metadata.uid and the trial is another."""

    async def delete_trial(self, namespace: str, name: str, *, uid: str = "", propagation: Propagation = "Background") -> bool: ...

    async def get_sweep(self, namespace: str, name: str) -> Object: ...

    async def delete_sweep(self, namespace: str, name: str, *, uid: str) -> bool: ...

    async def get_pod(self, namespace: str, name: str) -> Object: ...

    async def list_pods(self, namespace: str | None = None, *, label_selector: str = "") -> list[Object]: ...

    async def create_pod(self, pod: Mapping[str, Any]) -> Object: ...

    async def delete_pod(self, namespace: str, name: str, *, uid: str = "", grace_period_seconds: int | None = None) -> bool:
        """Ask for its end; False if it is gone already. Raises Conflict if another uid has the name."""

    async def get_config_map(self, namespace: str, name: str) -> Object: ...

    async def get_secret(self, namespace: str, name: str) -> Object: ...

    async def get_network_policy(self, namespace: str, name: str) -> Object: ...

    async def delete_disruption_budget(self, namespace: str, name: str) -> bool:
        """Ask for the end of a PodDisruptionBudget; False if it is gone already."""

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
        """Tell of something that happened to the object regarding (a whole object, or a reference)."""

    async def open_exec(self, namespace: str, pod: str, container: str, argv: Sequence[str]) -> ExecStream:
        """Run argv in a container, with stdin and stdout open."""
