"""The report as one self-contained HTML file. Its only script sorts and filters the trials, and the page loads no other file."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC
from importlib import resources
from itertools import groupby
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from multistep.api.common.plural import plural
from multistep.api.trial.score import Level, outcome_level, outcome_words
from multistep.engine.score.usage_totals import omission
from multistep.report.branches import Branches
from multistep.report.excerpts import Excerpts
from multistep.report.rows import FEWEST, TrialRow
from multistep.report.statistics import Estimate
from multistep.report.summary import LeaderboardRow, ReportedSweep, Summary, TaskSteps

WIDTH: Final = 720
LEFT, RIGHT, TOP, BOTTOM = 64, 704, 16, 344  # the area between the axes

_TICKS: Final = 5
_LEAST_DOLLARS: Final = 0.0001  # end of the cost's axis if no agent costs more
_CHARACTERS: Final = 24  # maximum length of a label
_CHARACTER_WIDTH, _LINE, _GAP = 7.5, 16, 9  # width of a label's character, height of a label, distance from its mark
_SHIFTS: Final = sorted(range(-20, 21), key=abs)  # lines by which a label may be above or below its mark, the nearest first


@dataclass(frozen=True)
class PictureAxis:
    """An axis of the picture of score against cost."""

    ticks: Sequence[float]
    """Its numbers, from the first to the last."""
    start: float
    end: float
    """start, end: their positions."""

    def at(self, value: float) -> float:
        """Return the position of a number."""
        first, last = self.ticks[0], self.ticks[-1]
        return round(self.start + (self.end - self.start) * (value - first) / (last - first), 1)

    def numbers(self) -> list[tuple[float, str]]:
        """Return the position and the text of each number."""
        step = self.ticks[1] - self.ticks[0]
        decimals = max(0, -math.floor(math.log10(step) + 1e-9))
        return [(self.at(tick), f"{tick:,.{decimals}f}" if step < 1e6 else f"{tick:.3g}") for tick in self.ticks]


@dataclass(frozen=True)
class MarkLabel:
    """The text beside a mark."""

    text: str
    x: float
    y: float
    """x, y: its position."""
    anchor: str
    """Its text-anchor."""
    shifted: bool
    """Whether it is above or below its mark."""


@dataclass(frozen=True)
class AgentMark:
    """An agent's mark."""

    standing: LeaderboardRow
    x: float
    y: float
    """x, y: its position."""
    low: float | None
    high: float | None
    """low, high: positions of the ends of its interval, None without an interval."""
    label: MarkLabel


@dataclass(frozen=True)
class CostPicture:
    """The picture of score against cost."""

    marks: Sequence[AgentMark]
    across: PictureAxis
    up: PictureAxis
    absent: Sequence[str]
    """Names of the agents that have no mark, because their cost or their mean score is unknown."""


def cost_picture(standings: Iterable[LeaderboardRow]) -> CostPicture | None:
    """Return the picture; None if no agent has a cost and a mean score."""
    points = [(row, _point(row)) for row in standings]
    shown = [(row, *point) for row, point in points if point is not None]
    if not shown:
        return None
    scores = [end for _, _, *ends in shown for end in ends if end is not None]
    across = PictureAxis(_ticks(0.0, max(_LEAST_DOLLARS, *(cost for _, cost, *_ in shown))), LEFT, RIGHT)
    up = PictureAxis(_ticks(min(0.0, *scores), max(1.0, *scores)), BOTTOM, TOP)
    places = [(across.at(max(0.0, cost)), up.at(score)) for _, cost, score, *_ in shown]
    labels = _labels([row.agent for row, *_ in shown], places)
    marks = [
        AgentMark(row, x, y, None if low is None else up.at(low), None if high is None else up.at(high), label)
        for (row, _, _, low, high), (x, y), label in zip(shown, places, labels, strict=True)
    ]
    return CostPicture(marks, across, up, [row.agent for row, point in points if point is None])


def _point(standing: LeaderboardRow) -> tuple[float, float, float | None, float | None] | None:
    """Return an agent's cost, mean score and interval; None without a cost or a mean score."""
    cost, mean = standing.cost_per_trial, standing.mean
    return None if cost is None or mean is None else (cost, mean.value, mean.low, mean.high)


def _ticks(first: float, last: float) -> list[float]:
    """Return round numbers at the same distance that cover the range."""
    rough = (last - first) / _TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = power * min(factor for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    low, high = math.floor(first / step + 1e-9), math.ceil(last / step - 1e-9)
    return [tick * step for tick in range(low, high + 1)]


def _labels(names: Sequence[str], places: Sequence[tuple[float, float]]) -> list[MarkLabel]:
    """Return a label for each mark, to its right or left, and above or below it where it would cover another label or mark."""
    taken = [(x - _GAP, y - _GAP, x + _GAP, y + _GAP) for x, y in places]
    labels = []
    for name, (x, y) in zip(names, places, strict=True):
        text = name if len(name) <= _CHARACTERS else f"{name[: _CHARACTERS - 1]}…"
        choices = list(_choices(text, x, y))
        label, box = next((choice for choice in choices if _is_free(choice[1], taken)), choices[0])
        taken.append(box)
        labels.append(label)
    return labels


_Box = tuple[float, float, float, float]


def _choices(text: str, x: float, y: float) -> Iterator[tuple[MarkLabel, _Box]]:
    """Yield the possible labels of a mark that are within the picture, each with its box."""
    width = _CHARACTER_WIDTH * len(text)
    for shift in _SHIFTS:
        middle = y + shift * _LINE
        for anchor, left in (("start", x + _GAP), ("end", x - _GAP - width)):
            if left >= LEFT and left + width <= WIDTH and TOP <= middle <= BOTTOM:
                at = x + _GAP if anchor == "start" else x - _GAP
                yield (
                    MarkLabel(text, round(at, 1), round(middle + 0.3 * _LINE, 1), anchor, shifted=shift != 0),
                    (left, middle - _LINE / 2, left + width, middle + _LINE / 2),
                )


def _is_free(box: _Box, taken: Iterable[_Box]) -> bool:
    left, top, right, bottom = box
    return all(right <= one[0] or one[2] <= left or bottom <= one[1] or one[3] <= top for one in taken)


_SHADES = 5
_MAX_DETAILED = 5000  # maximum number of trials with details; if there are more, only trials that did not pass have details


def report_page(about: ReportedSweep, summary: Summary, excerpts: Mapping[str, Excerpts] | None = None) -> str:
    """Return the report as the text of an HTML file. excerpts: excerpts by trial name."""
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
    """A row of the heat map. cells: each step with its shade, 0 to 4, by the share of trials that passed the step."""

    def __init__(self, task: TaskSteps) -> None:
        self.task = task
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
