"""Protocols of the calls that the operator makes to the cluster. ``ClusterClient`` implements them, and tests/support has a fake.

Objects are plain dicts as the API server sends them, because the operator reads many objects and only a few fields of each.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from multistep.kube.resources import Resource

Object = dict[str, Any]


@dataclass(frozen=True)
class ExitStatus:
    """The end of a command that exec ran."""

    code: int | None
    """The exit code, or None if the API server reported none."""
    message: str = ""
    """The API server's text about the end."""


class ExecStream(Protocol):
    """stdin and stdout of a command in a container. Every method raises StreamLost if the connection is lost."""

    @property
    def status(self) -> ExitStatus | None:
        """How the command ended. None while it runs, or if the connection was lost."""

    @property
    def exit_details(self) -> str:
        """The last bytes of stderr and the exit message, for error messages."""

    async def send(self, data: bytes) -> None:
        """Write data to stdin. Return when the send buffer is no longer full."""

    async def send_eof(self) -> None:
        """Close stdin. stdout stays open."""

    async def receive(self) -> bytes:
        """Return the next bytes of stdout, or b"" at its end, when ``status`` is set."""

    async def close(self) -> None:
        """Close the connection, so that the command reads end of file on stdin. This never raises an error. The call is
        idempotent."""


class Cluster(Protocol):
    """The calls that the operator makes. Each may raise ClusterError (NotFound, Conflict, Unavailable), and a write also
    NotLeading.

    A write that raised Unavailable may have succeeded, so the caller must read the object before the next write.
    multistep.kube.client.ClusterClient describes each call.
    """

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Object: ...

    async def list_all(
        self, resource: Resource, namespace: str | None = None, *, label_selector: str = "", field_selector: str = ""
    ) -> list[Object]: ...

    async def list_metadata(
        self, resource: Resource, namespace: str | None = None, *, label_selector: str = ""
    ) -> list[Object]: ...

    def iterate(self, resource: Resource, namespace: str | None = None, *, label_selector: str = "") -> AsyncIterator[Object]: ...

    async def create(self, manifest: Mapping[str, Any], *, dry_run: bool = False) -> Object: ...

    async def apply_status(
        self, resource: Resource, namespace: str, name: str, *, uid: str, resource_version: str, status: Mapping[str, Any]
    ) -> Object: ...

    async def patch(self, resource: Resource, namespace: str | None, name: str, changes: Mapping[str, Any]) -> Object: ...

    async def delete(
        self, resource: Resource, namespace: str | None, name: str, *, uid: str = "", grace_period_seconds: int | None = None
    ) -> bool: ...

    async def open_exec(self, namespace: str, pod: str, container: str, argv: Sequence[str]) -> ExecStream: ...

    def logs(
        self, namespace: str, pod: str, container: str, *, tail_lines: int | None = None, limit_bytes: int | None = None
    ) -> AsyncIterator[bytes]: ...
