"""The excluded trials of a sweep and why they are excluded, for the end of `sweep run`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from multistep.api.common.plural import plural
from multistep.cli.cluster import Cluster, find_sweep
from multistep.cli.sweep.owned_trials import counted_rows
from multistep.errors import ClusterError
from multistep.report.rows import Row

_SHOWN = 5


async def excluded_trials(cluster: Cluster, namespace: str, sweep: str) -> list[str]:
    """Return why trials of a sweep are excluded: a text for each task and reason, at most _SHOWN, then a text with the number of
    further ones; [] if the trials cannot be listed."""
    try:
        found = await find_sweep(cluster, namespace, sweep)
        return _texts(sweep, await counted_rows(cluster, namespace, found)) if found else []
    except ClusterError:
        return []


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
