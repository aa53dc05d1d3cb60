"""Follows a sweep, and shows its progress, its results so far and its estimated end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from multistep.api.common.plural import plural
from multistep.api.sweep.sweep import SweepStatus, parse_sweep_status
from multistep.api.trial.score import Level
from multistep.api.trial.status import holds, is_finished
from multistep.cli.costs import sweep_cost_text
from multistep.cli.exit_codes import Interrupted, exit_of_outcome
from multistep.cli.terminal import STYLES, Following, clean, clean_lines, counts_text, seconds_text, table
from multistep.client.connection import Cluster
from multistep.client.outcome import Outcome, is_out_of_budget, outcome_of_sweep
from multistep.client.watch import versions
from multistep.errors import Unavailable
from multistep.kube.cluster_protocols import Object
from multistep.kube.resources import SWEEPS


def seconds_left(status: SweepStatus, now: datetime) -> float | None:
    """Estimate the seconds until the sweep finishes, from its rate so far; None if it is not running or no trial has finished."""
    trials = status.trials
    if status.phase != "Running" or status.start_time is None or not trials.finished:
        return None
    worked = (now - status.start_time).total_seconds() - (status.suspended_seconds or 0)
    return max(0.0, worked * (trials.total - trials.finished) / trials.finished)


def progress_text(status: SweepStatus, now: datetime) -> str:
    """Return the sweep's progress on one line."""
    trials, found = status.trials, outcome_of_sweep(status)
    if not trials.total:
        return f"{found.phase}: {found.why}" if found.why and not is_finished(status) else found.phase
    active = ", ".join(
        f"{count} {what}"
        for count, what in ((trials.running, "running"), (trials.pending, "pending"), (trials.suspended, "suspended"))
        if count
    )
    left = seconds_left(status, now)
    parts = [
        f"{trials.finished} of {trials.total} trials finished",
        active,
        f"about {seconds_text(round(left))} left" if left else "",
    ]
    return f"{found.phase}: {', '.join(filter(None, parts))}"


def sweep_view(name: str, status: SweepStatus, now: datetime) -> Group:
    """Return the output of `sweep run` and `sweep status`."""
    found, trials = outcome_of_sweep(status), status.trials
    lines: list[RenderableType] = []
    if status.agents:
        agents = table("AGENT", "MEAN SCORE", "PASSED", "COUNTED", numbers=("MEAN SCORE",))
        for each in status.agents:
            mean = "-" if each.mean is None else f"{each.mean:.3f}"
            passed = f"{each.passed} of {each.counted}"
            agents.add_row(Text(clean(each.name)), mean, passed, f"{each.counted} of {each.finished}")
        lines.append(agents)
    if status.excluded:
        lines.append(Text(f"excluded: {counts_text(status.excluded)}", style=STYLES["excluded"]))
    if status.scored_failures:
        lines.append(Text(f"scored although a failure ended them: {counts_text(status.scored_failures)}"))
    if status.branches:
        missing = status.branches.missing
        lacking = f", {plural(missing, 'step')} without the agent's own state" if missing else ""
        lines.append(Text(f"branches: {status.branches.trials} of the trials{lacking}"))
    if trials.retried:
        lines.append(Text(f"retried: {trials.retried} (each number counts once)"))
    if trials.deleted:
        lines.append(Text(f"deleted trials: {trials.deleted}", style="red"))
    if status.pod_hours:
        lines.append(Text(f"pod-hours: {status.pod_hours:g}"))
    if cost := sweep_cost_text(status):
        lines.append(Text(cost))
    text = progress_text(status, now)
    ended = f": {clean_lines(found.why)}" if (is_finished(status) or is_out_of_budget(status)) and found.why else ""
    lines.append(Text(f"{clean(name)} {clean(text)}{ended}", style=f"bold {STYLES[_level(status)]}".strip()))
    return Group(*lines)


def _level(status: SweepStatus) -> Level:
    if holds(status, "Failed"):
        return "bad"
    if holds(status, "Complete"):
        return "excluded" if status.excluded else "good"
    return "neutral"


def sweep_document(namespace: str, name: str, status: SweepStatus, found: Outcome, now: datetime) -> dict[str, Any]:
    """Return the JSON document of `sweep run` and `sweep status`. found: the outcome of the sweep or of the command."""
    left = seconds_left(status, now)
    return {
        "namespace": namespace,
        "name": name,
        "phase": found.phase,
        "exitCode": exit_of_outcome(found),
        "why": found.why,
        "faults": list(found.faults),
        "secondsLeft": None if left is None else round(left),
        "status": status.model_dump(mode="json", by_alias=True, exclude_none=True),
    }


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
