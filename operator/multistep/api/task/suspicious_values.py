"""Finds keys of a task.toml that Harbor ignores, and numbers that are nan or infinite, which disable a limit."""

from __future__ import annotations

import difflib
import math
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from pydantic import BaseModel

from multistep.api.common.problems import dotted
from multistep.api.task.task_toml import TaskConfig, toml_table

_GATE = "min_reward"


@dataclass(frozen=True)
class NotFinite:
    """A number that is nan or infinite."""

    path: str
    """Path of the key, e.g. ``steps[0].min_reward``."""
    text: str
    """The number's effect, and what to write instead."""

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
    """Return the number's effect, and what to write instead."""
    if _GATE in place:
        effect = "no reward reaches it, so no later step runs" if number > 0 else "every reward passes it"
        return f"{effect}; set a finite number, or remove it"
    if place[-1] == "timeout_sec":
        return "nothing ever times out; set a number of seconds"
    return "not a number of seconds; set a finite one"


_OLD_ROOT_KEYS = frozenset({"version"})  # deprecated alias of schema_version


@dataclass(frozen=True)
class UnknownKey:
    """An unknown key, which is ignored."""

    path: str
    """Path of the key, e.g. ``steps[0].min_rewards``."""
    suggestion: str | None
    """A similar known key, None if there is none."""

    @property
    def text(self) -> str:
        return f"did you mean {self.suggestion}?" if self.suggestion else "unknown key"

    def __str__(self) -> str:
        return f"{self.path}: {self.text}"


def unknown_keys(task: str | Mapping[str, Any], *, most: int | None = None) -> list[UnknownKey]:
    """Return at most ``most`` unknown keys of a task.toml, in the order of the file. ``task`` is its text or the parsed table."""
    table = toml_table(task) if isinstance(task, str) else task
    return list(islice(_walk(TaskConfig, table, ()), most))


def _walk(model: type[BaseModel], table: Mapping[str, Any], place: tuple[int | str, ...]) -> Iterator[UnknownKey]:
    known = model.model_fields
    for key, value in table.items():
        if key in known:
            for below in _models(known[key].annotation):
                yield from _below(below, value, (*place, key))
        elif place or key not in _OLD_ROOT_KEYS:
            nearest = difflib.get_close_matches(key, known, n=1)
            yield UnknownKey(dotted((*place, key)), nearest[0] if nearest else None)


def _below(model: type[BaseModel], value: object, place: tuple[int | str, ...]) -> Iterator[UnknownKey]:
    if isinstance(value, Mapping):
        yield from _walk(model, value, place)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _below(model, item, (*place, index))


def _models(annotation: object) -> Iterator[type[BaseModel]]:
    """Yield the models in a field's annotation, e.g. M for the annotations M, M | None and list[M]."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in typing.get_args(annotation):
        yield from _models(argument)
