"""Reads the trials that a sweep owns. Any user may set the label with the sweep's name, so a trial's owner reference decides
whether the sweep owns it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import Any, TypeVar

from multistep.api.labels import SWEEP
from multistep.api.sweep import parse_scoring
from multistep.cli.cluster import Cluster
from multistep.engine.sweep_trials import owner_of
from multistep.kube.protocols import Object
from multistep.kube.resources import TRIALS
from multistep.report.rows import Row, counted, row

_T = TypeVar("_T")


async def owned_trials(cluster: Cluster, namespace: str, sweep: str, convert: Callable[[Object], _T]) -> list[tuple[str, _T]]:
    """Return the trials that sweeps of this name own, each with its sweep's UID: a deleted sweep may have had the same name.

    convert: returns what to keep of a trial; whole trials would need much memory. Raises ClusterError.
    """
    found: list[tuple[str, _T]] = []
    async with aclosing(cluster.each(TRIALS, namespace, label_selector=f"{SWEEP}={sweep}")) as trials:
        async for each in trials:
            owner = owner_of(each)
            if owner is not None and owner[0] == sweep:
                found.append((owner[1], convert(each)))
    return found


async def counted_rows(cluster: Cluster, namespace: str, sweep: Mapping[str, Any]) -> list[Row]:
    """Return the rows of the trials that count in a sweep: for each trial number, the first trial or one of its retries.
    Raises ClusterError."""
    metadata, scoring = sweep["metadata"], parse_scoring(sweep)
    owned = await owned_trials(cluster, namespace, metadata["name"], lambda trial: row(trial, scoring))
    return counted([each for uid, each in owned if uid == metadata["uid"]])
