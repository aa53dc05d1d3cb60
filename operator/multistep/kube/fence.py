"""Fencing: only the leader writes to the cluster.

A process that was suspended may resume in the middle of its work, after it lost the lease. So every write, and every frame
of an exec session, checks the lease when it is sent. Requests already in flight are fenced by the objects themselves: a
status is written only at the resourceVersion that was read, deletions name a uid, names are unique, and a runner executes
each request id at most once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Literal

from multistep.kube.protocols import FIELD_MANAGER, Cluster, ExecStream, ExitStatus, Object, Propagation
from multistep.kube.resources import TRIALS, Resource

Check = Callable[[], None]  # raises NotLeading


class Fenced:
    """A Cluster that checks the lease before each write. Reads need no lease."""

    def __init__(self, cluster: Cluster, check: Check) -> None:
        self._cluster = cluster
        self._check = check

    async def get_trial(self, namespace: str, name: str) -> Object:
        return await self._cluster.get_trial(namespace, name)

    async def list_trials(self, namespace: str | None = None, *, label_selector: str = "") -> list[Object]:
        return await self._cluster.list_trials(namespace, label_selector=label_selector)

    async def list_metadata(self, resource: Resource, namespace: str | None = None, *, label_selector: str = "") -> list[Object]:
        return await self._cluster.list_metadata(resource, namespace, label_selector=label_selector)

    def each_trial(self, namespace: str, label_selector: str) -> AsyncIterator[Object]:
        return self._cluster.each_trial(namespace, label_selector)

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
        self._check()
        return await self._cluster.apply_status(
            namespace,
            name,
            uid=uid,
            resource_version=resource_version,
            status=status,
            field_manager=field_manager,
            resource=resource,
        )

    async def patch_trial(self, namespace: str, name: str, changes: Mapping[str, Any]) -> Object:
        self._check()
        return await self._cluster.patch_trial(namespace, name, changes)

    async def delete_trial(self, namespace: str, name: str, *, uid: str = "", propagation: Propagation = "Background") -> bool:
        self._check()
        return await self._cluster.delete_trial(namespace, name, uid=uid, propagation=propagation)

    async def get_sweep(self, namespace: str, name: str) -> Object:
        return await self._cluster.get_sweep(namespace, name)

    async def delete_sweep(self, namespace: str, name: str, *, uid: str) -> bool:
        self._check()
        return await self._cluster.delete_sweep(namespace, name, uid=uid)

    async def get_pod(self, namespace: str, name: str) -> Object:
        return await self._cluster.get_pod(namespace, name)

    async def list_pods(self, namespace: str | None = None, *, label_selector: str = "") -> list[Object]:
        return await self._cluster.list_pods(namespace, label_selector=label_selector)

    async def create_pod(self, pod: Mapping[str, Any]) -> Object:
        self._check()
        return await self._cluster.create_pod(pod)

    async def delete_pod(self, namespace: str, name: str, *, uid: str = "", grace_period_seconds: int | None = None) -> bool:
        self._check()
        return await self._cluster.delete_pod(namespace, name, uid=uid, grace_period_seconds=grace_period_seconds)

    async def get_config_map(self, namespace: str, name: str) -> Object:
        return await self._cluster.get_config_map(namespace, name)

    async def get_secret(self, namespace: str, name: str) -> Object:
        return await self._cluster.get_secret(namespace, name)

    async def get_network_policy(self, namespace: str, name: str) -> Object:
        return await self._cluster.get_network_policy(namespace, name)

    async def delete_disruption_budget(self, namespace: str, name: str) -> bool:
        self._check()
        return await self._cluster.delete_disruption_budget(namespace, name)

    async def create(self, manifest: Mapping[str, Any], *, field_manager: str = FIELD_MANAGER) -> Object:
        self._check()
        return await self._cluster.create(manifest, field_manager=field_manager)

    async def create_event(
        self,
        regarding: Mapping[str, Any],
        *,
        reason: str,
        message: str,
        type: Literal["Normal", "Warning"] = "Normal",
        action: str = "Reconcile",
    ) -> None:
        self._check()
        await self._cluster.create_event(regarding, reason=reason, message=message, type=type, action=action)

    async def open_exec(self, namespace: str, pod: str, container: str, argv: Sequence[str]) -> ExecStream:
        self._check()
        return FencedStream(await self._cluster.open_exec(namespace, pod, container, argv), self._check)


class FencedStream:
    """An ExecStream that checks the lease before each send. Reading and closing start nothing, and need no lease."""

    def __init__(self, stream: ExecStream, check: Check) -> None:
        self._stream = stream
        self._check = check

    @property
    def status(self) -> ExitStatus | None:
        return self._stream.status

    @property
    def exit_details(self) -> str:
        return self._stream.exit_details

    async def send(self, data: bytes) -> None:
        self._check()
        await self._stream.send(data)

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def receive(self) -> bytes:
        return await self._stream.receive()

    async def close(self) -> None:
        await self._stream.close()
