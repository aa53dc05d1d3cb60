"""Reads the trials of a sweep as rows, from the cluster (in pages) or from a report file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

from multistep.api.sweep.sweep import Scoring, parse_scoring, parse_sweep_status
from multistep.cli.cluster import Cluster, find_sweep
from multistep.cli.sweep.owned_trials import Owned, owned_trials
from multistep.errors import ClusterError, UsageError
from multistep.kube.cluster_protocols import Object
from multistep.kube.watch import GONE
from multistep.report.rows import Row, counted, row
from multistep.report.step_row import StepRow
from multistep.report.summary import About

_TRIES = 3
_Owned: TypeAlias = tuple[str, Row]  # the UID of the sweep that owns a trial, and the trial's row


async def read(cluster: Cluster, namespace: str, sweep: str) -> tuple[About, list[Row]]:
    """Return the current state of the sweep and of its trials that count. The sweep itself may be deleted already.

    Raises UsageError if neither the sweep nor any of its trials exists, or if the trials belong to several deleted sweeps.
    """
    found = await find_sweep(cluster, namespace, sweep)
    status = parse_sweep_status(found) if found else None
    about = About(
        sweep,
        namespace,
        datetime.now(UTC),
        planned=status.trials.total or None if status else None,
        phase=status.phase or "" if status else "",
        scoring=parse_scoring(found) if found else Scoring(),
        cost_usd=status.cost_usd if status else None,
        budget_usd=status.budget.cost_usd if status and status.budget else None,
    )
    read = await _rows(cluster, namespace, sweep, found, about.scoring)
    owned = read.trials
    read.warn()
    uid = found["metadata"]["uid"] if found else _only_owner(sweep, owned)
    created = [each for owner, each in owned if owner == uid]
    rows = counted(created)
    if found is None and not rows:
        raise UsageError(f"sweep {sweep!r} does not exist in namespace {namespace!r}: `multistep sweep list -A` lists all")
    kept = set(map(id, rows))
    replaced = [each for each in created if id(each) not in kept]
    return replace(about, retried=sum(each.retry_of is not None for each in created), replaced=replaced), rows


def _only_owner(sweep: str, owned: Sequence[_Owned]) -> str | None:
    """Return the UID of the deleted sweep that owned the trials; None without trials. Raises UsageError if it is not unique."""
    uids = {uid for uid, _ in owned}
    if len(uids) > 1:
        raise UsageError(f"sweep {sweep!r} does not exist, and its trials belong to {len(uids)} deleted sweeps of that name")
    return next(iter(uids), None)


async def _rows(cluster: Cluster, namespace: str, sweep: str, found: Object | None, scoring: Scoring) -> Owned[Row]:
    for _ in range(_TRIES - 1):
        try:
            return await owned_trials(cluster, namespace, sweep, found, lambda trial: row(trial, scoring))
        except ClusterError as error:
            if error.status != GONE:  # 410: the list's continue token expired; list again
                raise
    return await owned_trials(cluster, namespace, sweep, found, lambda trial: row(trial, scoring))


def read_report(path: Path) -> tuple[str, Scoring, list[Row]]:
    """Return the sweep's name, its scoring and its trials from a file that `multistep sweep report -o FILE.json` wrote.

    Raises UsageError if the file is not a report.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        scoring = Scoring.model_validate(document["scoring"])
        return str(document["sweep"]), scoring, [_row(each) for each in document["trials"]]
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is not a report: `multistep sweep report SWEEP -o {path}` writes one") from error


def _row(fields: dict[str, Any]) -> Row:
    return Row(**{**fields, "steps": tuple(StepRow(**each) for each in fields["steps"])})
