"""The report as one self-contained HTML file. Its only script sorts and filters the trials, and the page loads no other file."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from datetime import UTC
from importlib import resources
from itertools import groupby

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from multistep.api.common.plural import plural
from multistep.api.trial.score import Level, outcome_level, outcome_words
from multistep.engine.score.usage_totals import omission
from multistep.report.branches import Branches
from multistep.report.cost_picture import cost_picture
from multistep.report.excerpts import Excerpts
from multistep.report.rows import FEWEST, TrialRow
from multistep.report.statistics import Estimate
from multistep.report.summary import LeaderboardRow, ReportedSweep, Summary, TaskSteps

_SHADES = 5
_MAX_DETAILED = 5000  # maximum number of trials with details; if there are more, only trials that did not pass have details


def report_page(about: ReportedSweep, summary: Summary, excerpts: Mapping[str, Excerpts] | None = None) -> str:
    """Return the report as the text of an HTML file. excerpts: the ends of outputs and the failing tests to show, by trial name."""
    script = resources.files("multistep.report").joinpath("templates/report.js").read_text()
    environment = Environment(
        loader=PackageLoader("multistep.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "number": number_text,
        "seconds": seconds_text,
        "probability": p_value_text,
        "outcome": outcome_text,
        "level": outcome_style,
    }
    environment.filters |= {
        "plural": plural,
        "dollars": dollars_text,
        "omission": omission,
        "place": _place,
        "signed": signed_text,
        "interval": interval_text,
    }
    return environment.get_template("report.html").render(
        about=about,
        summary=summary,
        read=about.read.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        scale=_Scale(summary.standings),
        costs=cost_picture(summary.standings),
        heat=[(task, list(map(_Heat, rows))) for task, rows in groupby(summary.tasks, key=lambda task_steps: task_steps.task)],
        columns=max((len(task_steps.steps) for task_steps in summary.tasks), default=0) or 1,
        passes=sorted({k for row in summary.standings for k in row.passes}),
        full=len(summary.rows) <= _MAX_DETAILED,
        excerpts=excerpts or {},
        branches=[(task, list(steps)) for task, steps in groupby(summary.branches.steps, key=lambda step: step.task)],
        branch_passes=branch_passes(summary.branches),
        active=sum(row.state == "Active" for row in summary.rows),
        excluded=sum(row.excluded for row in summary.rows),
        incomplete=any(row.incomplete_requests for row in summary.rows),
        fewest=FEWEST,
        script=Markup(script),
        script_hash=f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}",
    )


def outcome_text(row: TrialRow) -> str:
    """Return a trial's outcome in words; for an active trial, its state."""
    return outcome_words(row.outcome, row.failure_class) if row.outcome else row.state.lower()


def outcome_style(row: TrialRow) -> Level:
    """Return the level of a trial's outcome, which determines its style on the page."""
    return outcome_level(row.outcome) if row.outcome else "neutral"


def branch_passes(branches: Branches) -> list[int]:
    """Return the values of k for which any branched step has pass@k."""
    groups = (group for step in branches.steps for group in (step.start, step.own, step.reference) if group is not None)
    return sorted({k for group in groups for k in group.passes})


class _Scale:
    """The axis that all agents share. It gives the positions of numbers, in percent of the axis's width."""

    def __init__(self, standings: Sequence[LeaderboardRow]) -> None:
        ends = [0.0, 1.0]
        for row in standings:
            if row.mean is not None:
                ends += [end for end in (row.mean.value, row.mean.low, row.mean.high) if end is not None]
        self.first, self.last = min(ends), max(ends)

    def at(self, value: float) -> str:
        return f"{100 * (value - self.first) / (self.last - self.first):.2f}"

    def width(self, estimate: Estimate) -> str:
        low, high = estimate.low or 0.0, estimate.high or 0.0
        return f"{100 * (high - low) / (self.last - self.first):.2f}"


class _Heat:
    """A row of the heat map."""

    def __init__(self, task: TaskSteps) -> None:
        self.task = task
        # Each step with its shade, from 0 to 4, by the share of trials that passed the step.
        self.cells = [(cell, round((_SHADES - 1) * cell.passed / cell.trials)) for cell in task.steps]


def number_text(value: float | None) -> str:
    """Format a number with three decimals, a large number in scientific notation, and None as a dash."""
    if value is None:
        return "-"
    return f"{value:z.3f}" if abs(value) < 1e6 else f"{value:.3g}"


def signed_text(value: float) -> str:
    """Format a number as ``number`` does, with its sign."""
    return f"{value:+z.3f}" if abs(value) < 1e6 else f"{value:+.3g}"


def p_value_text(value: float | None) -> str:
    """Format a p-value."""
    if value is None:
        return "-"
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def seconds_text(value: float | None) -> str:
    """Format a duration, e.g. 0.4 s, 12 s, 3 min 20 s, 2 h 5 min; None as a dash."""
    if value is None:
        return "-"
    if value < 9.95:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    hours, minutes_left = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes_left} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def dollars_text(amount: float | None) -> str:
    """Format an amount of US dollars with cents, and an amount below 10 cents with two more decimals; None as a dash."""
    if amount is None:
        return "-"
    return f"${amount:.4f}" if 0 < abs(amount) < 0.1 else f"${amount:.2f}"


def _place(standing: LeaderboardRow) -> str:
    """Return where an agent's mark is in the picture of score against cost, as text."""
    cost = ", ".join(filter(None, (dollars_text(standing.cost_per_trial), standing.omission)))
    score = number_text(standing.mean.value if standing.mean else None)
    return f"{standing.agent}: cost {cost}, mean score {score}, 95 % interval {interval_text(standing.mean)}"


def interval_text(estimate: Estimate | None) -> str:
    """Format the estimate's confidence interval; "-" if it has none."""
    if estimate is None or estimate.low is None:
        return "-"
    return f"{number_text(estimate.low)} to {number_text(estimate.high)}"
