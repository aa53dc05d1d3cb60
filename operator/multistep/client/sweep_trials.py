"""Reads the trials of a sweep. As in the operator, engine.sweep.own_trials decides which trials are the sweep's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from multistep.api.common.labels import SWEEP
from multistep.api.common.plural import plural
from multistep.api.sweep.sweep import parse_scoring
from multistep.client.connection import Cluster
from multistep.engine.sweep.own_trials import SweepMembers
from multistep.engine.sweep.trial_manifests import owner_of
from multistep.kube.cluster_protocols import Object
from multistep.kube.resources import TRIALS
from multistep.reconcile.sweep.decision_records import members
from multistep.report.rows import TrialRow, rows_that_count, trial_row

_T = TypeVar("_T")
_SHOWN = 3


@dataclass(frozen=True)
class Owned(Generic[_T]):
    """The trials that sweeps of one name own."""

    trials: list[tuple[str, _T]] = field(default_factory=list)
    """Each trial with the UID of its sweep: a deleted sweep may have had the same name."""
    foreign: list[str] = field(default_factory=list)
    """Names of trials whose owner reference names the sweep, but which the operator did not create for it."""
    unproven: str | None = None
    """UID of the sweep whose trials count because of their owner references alone, because a ConfigMap with a part of its plan is
    missing or was changed. None: no such sweep."""

    def warnings(self) -> Iterator[str]:
        """Yield a warning about unproven trials, which count, and about foreign trials, which do not."""
        if unproven := sum(uid == self.unproven for uid, _ in self.trials):
            what = f"{plural(unproven, 'trial counts', 'trials count')} by the owner reference alone"
            yield f"a ConfigMap that the sweep's status names is missing or was changed: {what}"
        if self.foreign:
            shown = f"{', '.join(self.foreign[:_SHOWN])}{' ...' if len(self.foreign) > _SHOWN else ''}"
            what = f"{plural(len(self.foreign), 'trial claims', 'trials claim')} to be the sweep's, but the operator did not create"
            yield f"{what} {'it' if len(self.foreign) == 1 else 'them'} ({shown}); not counted"


async def owned_trials(
    cluster: Cluster, namespace: str, sweep: str, found: Object | None, convert: Callable[[Object], _T]
) -> Owned[_T]:
    """Return the trials of sweeps of this name. found: the sweep that has the name now, None if it was deleted.

    convert: returns the part of a trial to keep, because whole trials would need much memory. Raises ClusterError.
    """
    its = None if found is None else await members(cluster, found)
    known = {} if its is None else {its.uid: its}
    owned = Owned[_T](unproven=its.uid if its is not None and its.names is None and _has_record(found or {}) else None)
    async with aclosing(cluster.iterate(TRIALS, namespace, label_selector=f"{SWEEP}={sweep}")) as trials:
        async for each in trials:
            owner = owner_of(each)
            if owner is None or owner[0] != sweep:
                continue
            if known.setdefault(owner[1], SweepMembers(owner[1])).has(each):
                owned.trials.append((owner[1], convert(each)))
            else:
                owned.foreign.append(each["metadata"]["name"])
    return owned


def _has_record(found: Object) -> bool:
    status = found.get("status") or {}
    return bool(status.get("tasksFrom") or status.get("branches"))


async def own_trials(cluster: Cluster, sweep: Object, convert: Callable[[Object], _T], warn: Callable[[str], object]) -> list[_T]:
    """Return the trials that the operator created for the sweep, converted as in ``owned_trials``.

    warn: called with each warning of ``Owned``. Raises ClusterError.
    """
    metadata = sweep["metadata"]
    owned = await owned_trials(cluster, metadata["namespace"], metadata["name"], sweep, convert)
    for warning in owned.warnings():
        warn(warning)
    return [each for uid, each in owned.trials if uid == metadata["uid"]]


async def counted_rows(cluster: Cluster, sweep: Object, warn: Callable[[str], object]) -> Sequence[TrialRow]:
    """Return the rows of the trials that count in a sweep: for each trial number, the first trial or one of its retries. Arguments
    and errors are those of ``own_trials``."""
    scoring = parse_scoring(sweep)
    return rows_that_count(await own_trials(cluster, sweep, lambda trial: trial_row(trial, scoring), warn))
