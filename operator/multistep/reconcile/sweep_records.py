"""Immutable ConfigMaps of a sweep, for decisions that are made once and may be too large for its status."""

from __future__ import annotations

from typing import Any, Final

from multistep.api import labels
from multistep.api.sweep import TrialSweep
from multistep.engine.sweep_trials import owner_reference
from multistep.errors import AlreadyExists
from multistep.kube.protocols import Cluster, Object
from multistep.kube.resources import CONFIG_MAPS

MAX_BYTES: Final = 900_000  # maximum size of the data; a ConfigMap may have 1 MiB
NAME_DIGITS: Final = 12  # length of the digest in a name


async def create_once(cluster: Cluster, sweep: TrialSweep, name: str, data: dict[str, str]) -> Object:
    """Create a ConfigMap owned by the sweep and return it. If one of this name exists, return that; callers check its content."""
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
