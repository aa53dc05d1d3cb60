"""Reads the trials of a sweep. Which trials are the sweep's own is decided by engine.sweep.own_trials, as in the operator."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from multistep.api.common.labels import SWEEP
from multistep.api.common.plural import plural
from multistep.api.sweep.sweep import MAX_RETRIES, parse_scoring, parse_sweep_status
from multistep.cli.terminal import print_err
from multistep.client.connection import Cluster
from multistep.engine.sweep.next_trials import retries_of
from multistep.engine.sweep.own_trials import Members
from multistep.engine.sweep.trial_manifests import owner_of
from multistep.errors import Conflict, UsageError
from multistep.kube.cluster_protocols import Object
from multistep.kube.resources import SWEEPS, TRIALS
from multistep.reconcile.sweep.decision_records import members
from multistep.report.rows import Row, counted, row, sweep_number

_T = TypeVar("_T")
_SHOWN = 3


@dataclass(frozen=True)
class Owned(Generic[_T]):
    """The trials that sweeps of one name own. trials: each with its sweep's UID: a deleted sweep may have had the same name;
    foreign: names of trials that claim to be a sweep's and are not; unproven: UID of the sweep whose trials count because of
    their owner reference alone, as a ConfigMap with a part of its plan is missing or was changed; None: there is none."""

    trials: list[tuple[str, _T]] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    unproven: str | None = None

    def warn(self) -> None:
        """Print a warning about foreign trials, which do not count, and about unproven trials, which do."""
        if unproven := sum(uid == self.unproven for uid, _ in self.trials):
            what = f"{plural(unproven, 'trial counts', 'trials count')} by the owner reference alone"
            print_err(f"warning: a ConfigMap that the sweep's status names is missing or was changed: {what}")
        if self.foreign:
            shown = f"{', '.join(self.foreign[:_SHOWN])}{' ...' if len(self.foreign) > _SHOWN else ''}"
            what = f"{plural(len(self.foreign), 'trial claims', 'trials claim')} to be the sweep's, but the operator did not create"
            print_err(f"warning: {what} {'it' if len(self.foreign) == 1 else 'them'} ({shown}); not counted")


async def owned_trials(
    cluster: Cluster, namespace: str, sweep: str, found: Object | None, convert: Callable[[Object], _T]
) -> Owned[_T]:
    """Return the trials of sweeps of this name. found: the sweep that has the name now, None if it was deleted.

    convert: returns what to keep of a trial; whole trials would need much memory. Raises ClusterError.
    """
    its = None if found is None else await members(cluster, found)
    known = {} if its is None else {its.uid: its}
    owned = Owned[_T](unproven=its.uid if its is not None and its.names is None and _has_record(found or {}) else None)
    async with aclosing(cluster.each(TRIALS, namespace, label_selector=f"{SWEEP}={sweep}")) as trials:
        async for each in trials:
            owner = owner_of(each)
            if owner is None or owner[0] != sweep:
                continue
            if known.setdefault(owner[1], Members(owner[1])).has(each):
                owned.trials.append((owner[1], convert(each)))
            else:
                owned.foreign.append(each["metadata"]["name"])
    return owned


def _has_record(found: Object) -> bool:
    status = found.get("status") or {}
    return bool(status.get("tasksFrom") or status.get("branches"))


async def counted_rows(cluster: Cluster, namespace: str, sweep: Object) -> Sequence[Row]:
    """Return the rows of the trials that count in a sweep: for each trial number, the first trial or one of its retries.
    Raises ClusterError."""
    metadata, scoring = sweep["metadata"], parse_scoring(sweep)
    owned = await owned_trials(cluster, namespace, metadata["name"], sweep, lambda trial: row(trial, scoring))
    owned.warn()
    return counted([each for uid, each in owned.trials if uid == metadata["uid"]])


JsonObject = Mapping[str, Any]


async def retry_excluded(cluster: Cluster, namespace: str, sweep: JsonObject) -> list[str]:
    """Request a retry of each excluded trial of the sweep, except unverified trials and trials with a pending retry.

    Return the names of the trials that run again. Raises UsageError if the sweep would have too many retries, and ClusterError.
    """
    found = await _counting(cluster, namespace, sweep)
    return await _retry(cluster, namespace, sweep, [each for each in found if each.excluded and each.outcome != "Unverified"])


async def retry_one(cluster: Cluster, namespace: str, sweep: JsonObject, trial: str) -> None:
    """Request a retry of one trial of the sweep. Raises UsageError if the trial does not count in the sweep, is active, has a score
    or has a pending retry, and ClusterError."""
    found = {each.trial: each for each in await _counting(cluster, namespace, sweep)}.get(trial)
    name = sweep["metadata"]["name"]
    if found is None:
        raise UsageError(f"trial {trial} does not count in sweep {name}: a retry of it does")
    if found.state == "Active":
        raise UsageError(f"trial {trial} is active: stop it first, or wait until it has finished")
    if not found.excluded:
        raise UsageError(f"trial {trial} has a score, which a retry does not replace: to run its task again, start another trial")
    if not await _retry(cluster, namespace, sweep, [found]):
        raise UsageError(f"trial {trial} will run again already: spec.retries of sweep {name} has its number")


async def _counting(cluster: Cluster, namespace: str, sweep: JsonObject) -> list[Row]:
    """Return the rows of the trials that count in the sweep: for each trial number, the first trial or one of its retries."""
    return [each for each in await counted_rows(cluster, namespace, dict(sweep)) if each.number >= 0]


async def _retry(cluster: Cluster, namespace: str, sweep: JsonObject, rows: Collection[Row]) -> list[str]:
    """Append the trials' numbers to spec.retries; for a retry, the number of the trial that it repeats. Omit numbers that already
    have a pending retry.

    Return the names of the trials whose numbers were appended.
    """
    metadata, known, trials = sweep["metadata"], list(sweep["spec"].get("retries") or ()), parse_sweep_status(sweep).trials
    due = {each.number for each in retries_of(known, trials.total)[trials.retried :]}
    added = sorted((each for each in rows if sweep_number(each) not in due), key=sweep_number)
    if not added:
        return []
    if len(known) + len(added) > MAX_RETRIES:
        raise UsageError(f"sweep {metadata['name']} would have {len(known) + len(added)} retries; it may have {MAX_RETRIES}")
    same = {name: metadata[name] for name in ("uid", "resourceVersion") if name in metadata}
    changes = {"retries": [*known, *map(sweep_number, added)], "stop": None}  # without spec.stop, a stopped sweep continues
    try:
        await cluster.patch(SWEEPS, namespace, metadata["name"], {"metadata": same, "spec": changes})
    except Conflict as error:
        raise Conflict(f"sweep {metadata['name']} changed meanwhile; try again: {error}", status=409) from error
    return [each.trial for each in added]
