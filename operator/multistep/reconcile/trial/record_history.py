"""Writes the row of a trial to the history, right before the final status, so that every finished trial has a row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from multistep.api.sweep.sweep import Scoring, parse_scoring
from multistep.api.trial.status import TrialStatus
from multistep.engine.sweep.trial_manifests import number_of, owner_of
from multistep.errors import InvalidSpec, NotFound
from multistep.kube.cluster_protocols import Cluster, Object
from multistep.kube.resources import SWEEPS
from multistep.report.history_row import SweepOrigin, created_at, history_row, line_of
from multistep.store.files.trial_key import TrialKey, is_uid
from multistep.store.history import PACK_ROWS, History, Place

_SWEEPS: Final = 1000  # maximum number of sweeps that are kept in memory
_PACKS: Final = 1000  # maximum number of packs of a sweep in a day


@dataclass(frozen=True)
class HistoryWriter:
    """Writes rows of finished trials."""

    cluster: Cluster
    history: History
    _origins: dict[str, SweepOrigin] = field(default_factory=dict)
    """What rows need of a sweep, by its UID. Neither can change."""

    async def record(self, trial: Object, status: TrialStatus, agent_version: str = "") -> None:
        """Write the row of a trial that ends with this status. Idempotent. Raises StoreError and ClusterError.

        agent_version: the version that the agent reported, "" if it reported none.
        """
        row = history_row(trial, status, await self._origin(trial), agent_version)
        await self.history.add(_place(trial, created_at(trial, status)), line_of(row))

    async def _origin(self, trial: Object) -> SweepOrigin:
        """Return the origin of a sweep's trial, from memory or the sweep. A deleted sweep leaves the default scoring."""
        if (owner := owner_of(trial)) is None:
            return SweepOrigin()
        name, uid = owner
        if uid not in self._origins:
            try:
                sweep = await self.cluster.get(SWEEPS, trial["metadata"]["namespace"], name)
            except NotFound as error:
                if error.reason != "NotFound":  # a proxy answered, so the sweep may exist
                    raise
                return SweepOrigin()
            if sweep["metadata"]["uid"] != uid:
                return SweepOrigin()
            if len(self._origins) >= _SWEEPS:
                self._origins.clear()
            self._origins[uid] = _origin_of(sweep)
        return self._origins[uid]


def _origin_of(sweep: Object) -> SweepOrigin:
    try:
        scoring = parse_scoring(sweep)
    except InvalidSpec:
        scoring = Scoring()
    return SweepOrigin(scoring, _dataset((sweep.get("spec") or {}).get("tasksFrom") or {}))


def _dataset(source: Mapping[str, Any]) -> str:
    """Return the name of a dataset with its version, or the address of another source of tasks; "" without a source."""
    if found := source.get("dataset"):
        return f"{found.get('name', '')}@{found['version']}" if found.get("version") else str(found.get("name", ""))
    return next((str(found.get("url") or found.get("image") or "") for found in source.values() if isinstance(found, Mapping)), "")


def _place(trial: Object, created: datetime) -> Place:
    metadata, owner = trial["metadata"], owner_of(trial)
    key = TrialKey(metadata["namespace"], metadata["name"], metadata["uid"])
    group = f"trials-{created.hour:02}"
    if owner is not None and is_uid(owner[1]):  # users can write owner references
        group = f"{owner[1]}-{max(0, number_of(trial)) // PACK_ROWS % _PACKS}"
    return Place(key, created.date(), group)
