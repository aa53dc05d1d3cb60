"""The picture of mean score against cost: positions of its marks, labels and axes in an SVG's coordinates."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from multistep.report.summary import Standing

WIDTH: Final = 720
LEFT, RIGHT, TOP, BOTTOM = 64, 704, 16, 344  # the area between the axes

_TICKS: Final = 5
_LEAST_DOLLARS: Final = 0.0001  # end of the cost's axis if no agent costs more
_CHARACTERS: Final = 24  # maximum length of a label
_CHARACTER_WIDTH, _LINE, _GAP = 7.5, 16, 9  # width of a label's character, height of a label, distance from its mark
_SHIFTS: Final = sorted(range(-20, 21), key=abs)  # lines by which a label may be above or below its mark, the nearest first


@dataclass(frozen=True)
class Axis:
    """An axis. ticks: its numbers, from the first to the last; start, end: their positions."""

    ticks: Sequence[float]
    start: float
    end: float

    def at(self, value: float) -> float:
        """Return the position of a number."""
        first, last = self.ticks[0], self.ticks[-1]
        return round(self.start + (self.end - self.start) * (value - first) / (last - first), 1)

    def numbers(self) -> list[tuple[float, str]]:
        """Return the position and the text of each number."""
        step = self.ticks[1] - self.ticks[0]
        decimals = max(0, -math.floor(math.log10(step) + 1e-9))
        return [(self.at(each), f"{each:,.{decimals}f}" if step < 1e6 else f"{each:.3g}") for each in self.ticks]


@dataclass(frozen=True)
class Label:
    """A mark's text. x, y: its position; anchor: its text-anchor; shifted: whether it is above or below its mark."""

    text: str
    x: float
    y: float
    anchor: str
    shifted: bool


@dataclass(frozen=True)
class Mark:
    """An agent's mark. x, y: its position; low, high: positions of the ends of its interval, None without an interval."""

    standing: Standing
    x: float
    y: float
    low: float | None
    high: float | None
    label: Label


@dataclass(frozen=True)
class CostPicture:
    """The picture. absent: names of the agents that have no mark, because their cost or their mean score is unknown."""

    marks: Sequence[Mark]
    across: Axis
    up: Axis
    absent: Sequence[str]


def cost_picture(standings: Iterable[Standing]) -> CostPicture | None:
    """Return the picture; None if no agent has a cost and a mean score."""
    points = [(each, _point(each)) for each in standings]
    shown = [(each, *point) for each, point in points if point is not None]
    if not shown:
        return None
    scores = [end for _, _, *ends in shown for end in ends if end is not None]
    across = Axis(_ticks(0.0, max(_LEAST_DOLLARS, *(cost for _, cost, *_ in shown))), LEFT, RIGHT)
    up = Axis(_ticks(min(0.0, *scores), max(1.0, *scores)), BOTTOM, TOP)
    places = [(across.at(max(0.0, cost)), up.at(score)) for _, cost, score, *_ in shown]
    labels = _labels([each.agent for each, *_ in shown], places)
    marks = [
        Mark(each, x, y, None if low is None else up.at(low), None if high is None else up.at(high), label)
        for (each, _, _, low, high), (x, y), label in zip(shown, places, labels, strict=True)
    ]
    return CostPicture(marks, across, up, [each.agent for each, point in points if point is None])


def _point(standing: Standing) -> tuple[float, float, float | None, float | None] | None:
    """Return an agent's cost, mean score and interval; None without a cost or a mean score."""
    cost, mean = standing.cost_per_trial, standing.mean
    return None if cost is None or mean is None else (cost, mean.value, mean.low, mean.high)


def _ticks(first: float, last: float) -> list[float]:
    """Return round numbers at the same distance that cover the range."""
    rough = (last - first) / _TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = power * min(each for each in (1, 2, 5, 10) if each * power >= rough * (1 - 1e-9))
    low, high = math.floor(first / step + 1e-9), math.ceil(last / step - 1e-9)
    return [each * step for each in range(low, high + 1)]


def _labels(names: Sequence[str], places: Sequence[tuple[float, float]]) -> list[Label]:
    """Return a label for each mark, to its right or left, and above or below it where it would cover another label or mark."""
    taken = [(x - _GAP, y - _GAP, x + _GAP, y + _GAP) for x, y in places]
    found = []
    for name, (x, y) in zip(names, places, strict=True):
        text = name if len(name) <= _CHARACTERS else f"{name[: _CHARACTERS - 1]}…"
        choices = list(_choices(text, x, y))
        label, box = next((each for each in choices if _is_free(each[1], taken)), choices[0])
        taken.append(box)
        found.append(label)
    return found


_Box = tuple[float, float, float, float]


def _choices(text: str, x: float, y: float) -> Iterator[tuple[Label, _Box]]:
    """Yield the possible labels of a mark that are within the picture, each with its box."""
    width = _CHARACTER_WIDTH * len(text)
    for shift in _SHIFTS:
        middle = y + shift * _LINE
        for anchor, left in (("start", x + _GAP), ("end", x - _GAP - width)):
            if left >= LEFT and left + width <= WIDTH and TOP <= middle <= BOTTOM:
                at = x + _GAP if anchor == "start" else x - _GAP
                yield (
                    Label(text, round(at, 1), round(middle + 0.3 * _LINE, 1), anchor, shifted=shift != 0),
                    (left, middle - _LINE / 2, left + width, middle + _LINE / 2),
                )


def _is_free(box: _Box, taken: Iterable[_Box]) -> bool:
    left, top, right, bottom = box
    return all(right <= one[0] or one[2] <= left or bottom <= one[1] or one[3] <= top for one in taken)
