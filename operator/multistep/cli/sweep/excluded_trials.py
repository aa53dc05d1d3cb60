"""The excluded trials of a sweep and why they are excluded, for the end of `sweep run`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from contextlib import aclosing

from multistep.api.labels import SWEEP
from multistep.api.plural import plural
from multistep.api.sweep import parse_scoring
from multistep.cli.cluster import Cluster, find_sweep
from multistep.engine.sweep_trials import owner_of
from multistep.errors import ClusterError
from multistep.kube.resources import TRIALS
from multistep.report.rows import Row, counted, row

_SHOWN = 5


async def excluded_trials(cluster: Cluster, namespace: str, sweep: str) -> list[str]:
    """Return why trials of a sweep are excluded, one text for each task and reason; [] if its trials cannot be listed."""
    try:
        return _texts(sweep, await _rows(cluster, namespace, sweep))
    except ClusterError:
        return []


async def _rows(cluster: Cluster, namespace: str, sweep: str) -> list[Row]:
    found = await find_sweep(cluster, namespace, sweep)
    if found is None:
        return []
    scoring, owner, rows = parse_scoring(found), (sweep, found["metadata"]["uid"]), list[Row]()
    async with aclosing(cluster.each(TRIALS, namespace, label_selector=f"{SWEEP}={sweep}")) as trials:
        async for each in trials:
            if owner_of(each) == owner:
                rows.append(row(each, scoring))
    return counted(rows)


def _texts(sweep: str, rows: Iterable[Row]) -> list[str]:
    groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for each in rows:
        if each.excluded:
            groups[each.task, each.reason].append(each)
    found = [
        ": ".join(filter(None, [f"task {task}", f"{plural(len(group), 'trial')} excluded", reason, group[0].message]))
        for (task, reason), group in sorted(groups.items())
    ]
    more = len(found) - _SHOWN
    return found if more <= 0 else [*found[:_SHOWN], f"{more} more tasks or reasons: multistep sweep report {sweep}"]
