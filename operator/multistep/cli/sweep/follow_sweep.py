"""Follows a sweep until it finishes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from datetime import UTC, datetime

from multistep.api.sweep.sweep import SweepStatus, parse_sweep_status
from multistep.api.trial.conditions import is_finished
from multistep.cli.cluster import Cluster
from multistep.cli.exits import Interrupted
from multistep.cli.sweep.sweep_view import is_out_of_budget, progress_text, sweep_view
from multistep.cli.terminal import Following
from multistep.cli.trial.run.follow import versions
from multistep.errors import Unavailable
from multistep.kube.cluster_protocols import Object
from multistep.kube.resources import SWEEPS

LINE_SECONDS = 10.0  # without a terminal: minimum time between two progress lines; a phase change is printed immediately


async def follow_sweep(cluster: Cluster, namespace: str, name: str) -> SweepStatus:
    """Follow the sweep until it finishes or its budget is spent, and return its last status.

    Raises Interrupted after Ctrl-C, Unavailable if the API server does not answer (the sweep continues in both cases), Gone if the
    sweep is deleted, and ClusterError.
    """
    there = f"{name} -n {namespace}"
    continues = f"sweep {name} continues; follow: multistep sweep status --follow {there}; end: multistep sweep stop {there}"
    status = SweepStatus()
    try:
        with Following(lambda: sweep_view(name, status, datetime.now(UTC))) as following:
            lines = _Lines(following.line, asyncio.get_running_loop().time)
            async with aclosing(versions(cluster, SWEEPS, namespace, name, following.note)) as found:
                async for each in found:
                    status = parse_sweep_status(each)
                    lines.report(status)
                    if _is_observed(each, status) and (is_finished(status) or is_out_of_budget(status)):
                        return status
    except asyncio.CancelledError:  # Ctrl-C
        raise Interrupted(continues) from None
    except Unavailable as error:
        raise Unavailable(f"{error}; {continues}") from error
    raise Unavailable(f"the API server ended the watch of sweep {name}; {continues}")


def _is_observed(sweep: Object, status: SweepStatus) -> bool:
    """Report whether the status is of the current spec. A change of the spec, for example a retry or a larger budget, makes a
    finished sweep continue, so a status of an earlier spec is not final."""
    generation: int = sweep["metadata"].get("generation", 0)
    return (status.observed_generation or 0) >= generation


class _Lines:
    """Prints progress lines when stderr is not a terminal: at once when the phase changes, else at most one per LINE_SECONDS."""

    def __init__(self, line: Callable[[str], None], clock: Callable[[], float]) -> None:
        self._line, self._clock = line, clock
        self._phase: str | None = None
        self._printed = ""
        self._at = 0.0

    def report(self, status: SweepStatus) -> None:
        text, now = progress_text(status, datetime.now(UTC)), self._clock()
        if status.phase == self._phase and (text == self._printed or now - self._at < LINE_SECONDS):
            return
        self._phase, self._printed, self._at = status.phase, text, now
        self._line(text)
