"""Lets a sweep that regrades another one start when that one is finished."""

from __future__ import annotations

from typing import Final

from multistep.api.conditions import is_finished
from multistep.api.sweep import TrialSweep, parse_sweep_status
from multistep.errors import NotFound
from multistep.kube.protocols import Cluster
from multistep.kube.resources import SWEEPS
from multistep.reconcile.starting_points import GRACE_SECONDS

SOURCE_ACTIVE: Final = "SourceActive"
SOURCE_SECONDS: Final = 10.0  # between two checks of the source


async def unfinished_source(cluster: Cluster, sweep: TrialSweep, now: float) -> str:
    """Return why the sweep that is regraded has no results yet, "" if it has some, or will never have any: its trials may be kept
    longer than itself. Otherwise trials that it creates later would be refused, and be missing. now: seconds since the epoch."""
    regrade, metadata = sweep.spec.regrade, sweep.metadata
    if regrade is None or regrade.sweep == metadata.name:
        return ""
    try:
        found = await cluster.get(SWEEPS, metadata.namespace, regrade.sweep)
    except NotFound:
        created = metadata.creation_timestamp
        young = created is not None and now - created.timestamp() < GRACE_SECONDS
        return f"spec.regrade.sweep: sweep {regrade.sweep} does not exist" if young else ""
    return "" if is_finished(parse_sweep_status(found)) else f"sweep {regrade.sweep} is to be regraded and is not finished"
