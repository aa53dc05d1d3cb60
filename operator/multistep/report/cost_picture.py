"""Computes the picture of score against cost: the positions of axes, marks and labels. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from multistep.report.summary import LeaderboardRow

WIDTH: Final = 720
LEFT, RIGHT, TOP, BOTTOM = 64, 704, 16, 344  # the area between the axes

_TICKS: Final = 5
_LEAST_DOLLARS: Final = 0.0001  # end of the cost's axis if no agent costs more
_CHARACTERS: Final = 24  # maximum length of a label
_CHARACTER_WIDTH, _LINE, _GAP = 7.5, 16, 9  # width of a character of a label, height of a label, distance of it from its mark
_SHIFTS: Final = sorted(range(-20, 21), key=abs)  # lines by which a label may be above or below its mark, the nearest first


@dataclass(frozen=True)
class PictureAxis:
    """An axis of the picture of score against cost."""

    ticks: Sequence[float]
    """The numbers at the axis, from the first to the last."""
    start: float
    """Position of the first number."""
    end: float
    """Position of the last number."""

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
    anchor: str
    """The attribute text-anchor of the SVG text."""
    shifted: bool
    """Whether the label was moved up or down from its mark; a line then connects them."""


@dataclass(frozen=True)
class AgentMark:
    """An agent's mark."""

    standing: LeaderboardRow
    x: float
    y: float
    low: float | None
    """Position of the lower end of the agent's interval, None without an interval."""
    high: float | None
    """Position of the upper end of the interval."""
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
