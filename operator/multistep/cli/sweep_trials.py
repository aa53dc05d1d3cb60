"""The trials of a sweep as rows: read from the cluster page by page, or from a report that was kept."""

from __future__ import annotations

import json
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..api.labels import SWEEP
from ..api.sweep import parse_sweep_status
from ..cluster.resources import TRIALS
from ..errors import ClusterError, UsageError
from ..report.rows import Row, StepRow, row
from ..report.summary import About
from .cluster import Cluster, find_sweep

_GONE = 410
_TRIES = 3


async def read(cluster: Cluster, namespace: str, sweep: str) -> tuple[About, list[Row]]:
    """The sweep and its trials as they are. UsageError: there is neither."""
    found = await find_sweep(cluster, namespace, sweep)
    status = parse_sweep_status(found) if found else None
    about = About(
        sweep,
        namespace,
        datetime.now(UTC),
        planned=status.trials.total or None if status else None,
        phase=status.phase or "" if status else "",
    )
    rows = await _rows(cluster, namespace, sweep)
    if found is None and not rows:
        raise UsageError(f"there is no sweep {sweep!r} in namespace {namespace!r}: `kubectl get tsw -A` lists all")
    return about, rows


async def _rows(cluster: Cluster, namespace: str, sweep: str) -> list[Row]:
    for _ in range(_TRIES - 1):
        try:
            return await _read_rows(cluster, namespace, sweep)
        except ClusterError as error:
            if error.status != _GONE:  # the pages were too slow for the API server, which forgets: begin again
                raise
    return await _read_rows(cluster, namespace, sweep)


async def _read_rows(cluster: Cluster, namespace: str, sweep: str) -> list[Row]:
    async with aclosing(cluster.each(TRIALS, namespace, label_selector=f"{SWEEP}={sweep}")) as trials:
        return [row(each) async for each in trials]


def read_report(path: Path) -> tuple[str, list[Row]]:
    """The name of the sweep and the trials in a file that `multistep sweep report -o FILE.json` wrote. UsageError: it is none."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        return str(document["sweep"]), [_row(each) for each in document["trials"]]
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is no report: `multistep sweep report SWEEP -o {path}` writes one") from error


def _row(fields: dict[str, Any]) -> Row:
    return Row(**{**fields, "steps": tuple(StepRow(**each) for each in fields["steps"])})
