"""Connects to the cluster that the user chose."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any, Protocol

from multistep.client.kubeconfig import current_cluster, fault
from multistep.client.options import Target
from multistep.client.reconnecting_watch import WatchEvent, WatchingClient
from multistep.errors import Unavailable
from multistep.kube.cluster_protocols import Object
from multistep.kube.exec import WebsocketExec
from multistep.kube.resources import Resource


class Cluster(Protocol):
    """The methods of WatchingClient that the client and the command line use. Each may raise ClusterError."""

    @property
    def namespace(self) -> str: ...

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Object: ...

    def iterate(
        self, resource: Resource, namespace: str | None = None, *, label_selector: str = ""
    ) -> AsyncGenerator[Object, None]: ...

    async def apply(self, manifest: Mapping[str, Any], *, field_manager: str = ..., dry_run: bool = ...) -> Object: ...

    async def create(self, manifest: Mapping[str, Any], *, dry_run: bool = ...) -> Object: ...

    async def delete(self, resource: Resource, namespace: str | None, name: str, *, uid: str = "") -> bool: ...

    async def patch(self, resource: Resource, namespace: str | None, name: str, changes: Mapping[str, Any]) -> Object: ...

    def watch(
        self, resource: Resource, namespace: str | None = None, *, label_selector: str = "", field_selector: str = ""
    ) -> AsyncGenerator[WatchEvent, None]: ...

    def logs(
        self, namespace: str, pod: str, container: str, *, tail_lines: int | None = None, follow: bool = False
    ) -> AsyncGenerator[bytes, None]: ...

    def raw_stream(self, path: str) -> AsyncGenerator[bytes, None]: ...

    async def open_exec(
        self,
        namespace: str,
        pod: str,
        container: str,
        argv: Sequence[str],
        *,
        tty: bool = ...,
        on_stderr: Callable[[bytes], object] | None = ...,
        attempts: int = ...,
    ) -> WebsocketExec: ...


async def open_client(target: Target, field_manager: str) -> WatchingClient:
    """Return a client with the target's namespace, whose writes the API server rejects if they have unknown fields. Raises
    Unavailable, with the reason, if the kubeconfig is not usable."""
    kubeconfig, context = target.kubeconfig, target.context
    try:
        client = await WatchingClient.connect(kubeconfig=kubeconfig, context=context, field_manager=field_manager, strict=True)
    except Unavailable as error:
        reason = fault(kubeconfig, context)
        if not reason and current_cluster(kubeconfig, context):
            raise
        reason = reason or "no kubeconfig names a cluster"
        raise Unavailable(f"{reason}: set $KUBECONFIG, or use --kubeconfig and --context") from error
    client.namespace = target.namespace or client.namespace
    return client
