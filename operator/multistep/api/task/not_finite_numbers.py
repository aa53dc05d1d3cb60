"""Finds numbers of a task.toml that are nan or infinite. Harbor loads them without a word, though each switches a limit off."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pydantic import BaseModel

from multistep.api.common.problems import dotted
from multistep.api.task.task_toml import TaskConfig

_GATE = "min_reward"


@dataclass(frozen=True)
class NotFinite:
    """A number that is nan or infinite, and what that means. path: e.g. ``steps[0].min_reward``."""

    path: str
    text: str

    def __str__(self) -> str:
        return f"{self.path} {self.text}"


def not_finite(config: TaskConfig) -> list[NotFinite]:
    """Return the numbers that are nan or infinite, in the order of the models' fields, without those in [metadata]."""
    return [NotFinite(dotted(place), f"is {number}: {_effect(place, number)}") for place, number in _numbers(config, ())]


def _numbers(value: object, place: tuple[int | str, ...]) -> Iterator[tuple[tuple[int | str, ...], float]]:
    if isinstance(value, float) and not math.isfinite(value):
        yield place, value
    elif isinstance(value, BaseModel):
        for name in type(value).model_fields:
            if (name, place) != ("metadata", ()):
                yield from _numbers(getattr(value, name), (*place, name))
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from _numbers(each, (*place, key))
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from _numbers(each, (*place, index))


def _effect(place: tuple[int | str, ...], number: float) -> str:
    """Return what the number does, and what would be right."""
    if _GATE in place:
        effect = "no reward reaches it, so no later step runs" if number > 0 else "every reward passes it"
        return f"{effect}; set a finite number, or remove it"
    if place[-1] == "timeout_sec":
        return "nothing ever times out; set a number of seconds"
    return "not a number of seconds; set a finite one"
