"""Stores decisions that a sweep makes once, and that may be too large for its status, in immutable ConfigMaps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

from multistep.api.common import labels
from multistep.api.sweep.sweep import TrialSweep, parse_sweep
from multistep.engine.sweep.own_trials import SweepMembers, members_of
from multistep.engine.sweep.trial_manifests import owner_reference
from multistep.errors import AlreadyExists, InvalidSpec, NotFound
from multistep.kube.cluster_protocols import Cluster, Object
from multistep.kube.resources import CONFIG_MAPS, Resource
from multistep.sources.task.bundle import digest_of

MAX_BYTES: Final = 900_000  # maximum size of the data; a ConfigMap may have 1 MiB
NAME_DIGITS: Final = 12  # length of the digest in a name


class ObjectReader(Protocol):
    """A client that can read an object of the API server."""

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Object: ...


async def create_once(cluster: Cluster, sweep: TrialSweep, name: str, data: dict[str, str]) -> Object:
    """Create a ConfigMap owned by the sweep and return it. If one of this name exists, return that one. Callers check its
    content."""
    owner = sweep.metadata
    manifest: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": name,
            "namespace": owner.namespace,
            "labels": dict(labels.MANAGED),
            "ownerReferences": [owner_reference(sweep)],
        },
        "immutable": True,
        "data": data,
    }
    try:
        return await cluster.create(manifest)
    except AlreadyExists:
        return await cluster.get(CONFIG_MAPS, owner.namespace, name)


async def members(cluster: ObjectReader, found: Mapping[str, Any]) -> SweepMembers:
    """Return which trials belong to a sweep, from its spec and the ConfigMaps with its decisions. Raises ClusterError."""
    try:
        sweep = parse_sweep(found)
    except InvalidSpec:
        return SweepMembers(found["metadata"]["uid"])
    status = sweep.status
    tasks = await _record(cluster, sweep, status.tasks_from.config_map, status.tasks_from.digest) if status.tasks_from else None
    branches = await _record(cluster, sweep, status.branches.config_map, status.branches.digest) if status.branches else None
    return members_of(sweep, tasks, branches)


async def _record(cluster: ObjectReader, sweep: TrialSweep, name: str, digest: str) -> str | None:
    """Return the text of a ConfigMap, None unless it exists and has the digest that the status names. Raises ClusterError."""
    try:
        found = await cluster.get(CONFIG_MAPS, sweep.metadata.namespace, name)
    except NotFound as error:
        if error.reason != "NotFound":  # a proxy answered, so the ConfigMap may exist
            raise
        return None
    return next((str(text) for text in (found.get("data") or {}).values() if digest_of(str(text).encode()) == digest), None)
