"""Retries of a sweep's trials: finds the trials without a score, and appends their numbers to spec.retries; for a retry, the number
of the trial that it repeats."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from multistep.api.sweep.sweep import MAX_RETRIES, parse_sweep_status
from multistep.cli.cluster import Cluster
from multistep.cli.sweep.owned_trials import counted_rows
from multistep.engine.sweep.retries import retries_of
from multistep.errors import Conflict, UsageError
from multistep.kube.resources import SWEEPS
from multistep.report.rows import Row, sweep_number

Object = Mapping[str, Any]


async def retry_excluded(cluster: Cluster, namespace: str, sweep: Object) -> list[str]:
    """Request a retry of each excluded trial of the sweep, except unverified trials and trials with a pending retry.

    Return the names of the trials that run again. Raises UsageError if the sweep would have too many retries, and ClusterError.
    """
    found = await _counting(cluster, namespace, sweep)
    return await _retry(cluster, namespace, sweep, [each for each in found if each.excluded and each.outcome != "Unverified"])


async def retry_one(cluster: Cluster, namespace: str, sweep: Object, trial: str) -> None:
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


async def _counting(cluster: Cluster, namespace: str, sweep: Object) -> list[Row]:
    """Return the rows of the trials that count in the sweep: for each trial number, the first trial or one of its retries."""
    return [each for each in await counted_rows(cluster, namespace, dict(sweep)) if each.number >= 0]


async def _retry(cluster: Cluster, namespace: str, sweep: Object, rows: Collection[Row]) -> list[str]:
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
