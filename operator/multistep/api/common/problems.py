"""Converts pydantic's errors into readable lines with the field's path, the problem and the value."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]+")
_VALUE_LENGTH = 80


@dataclass(frozen=True)
class Problem:
    """A validation error."""

    path: str
    """Path of the field, e.g. ``steps[1].healthcheck.command``, "" for the whole document."""
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


def problems(error: ValidationError, document: object) -> list[Problem]:
    """Return one problem per path, in the order of the models' fields. ``document`` is the validated document."""
    by_place: dict[tuple[int | str, ...], list[ErrorDetails]] = {}
    for detail in error.errors(include_url=False):
        by_place.setdefault(_place(detail, document), []).append(detail)
    return [Problem(dotted(place), _message(details)) for place, details in by_place.items()]


def dotted(place: Sequence[int | str]) -> str:
    """Return a path as text, with dots between keys, indexes in brackets, and keys with special characters in quotes."""
    text = ""
    for part in place:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            key = part if _PLAIN_KEY.fullmatch(part) else f'"{part}"'
            text += f".{key}" if text else key
    return text


def shown(value: object) -> str:
    """Return a value as text for an error message, cut to one short line."""
    text = repr(value)
    return text if len(text) <= _VALUE_LENGTH else text[: _VALUE_LENGTH - 3] + "..."


def _place(detail: ErrorDetails, document: object) -> tuple[int | str, ...]:
    """Return the error's location without the parts that pydantic adds for the members of a union."""
    place: list[int | str] = []
    here = document
    for part in detail["loc"]:
        below = _children(here)
        if part in below:
            here = below[part]
        elif not (detail["type"] == "missing" and part == detail["loc"][-1]):
            continue
        place.append(part)
    return tuple(place)


def _children(value: object) -> Mapping[Any, object]:
    if isinstance(value, Mapping):
        return value
    return dict(enumerate(value)) if isinstance(value, list) else {}


def _message(details: Sequence[ErrorDetails]) -> str:
    if all(detail["type"] == "missing" for detail in details):
        return "is required, but missing"
    texts = dict.fromkeys(_text(detail) for detail in details)
    value = details[0]["input"]
    first, *others = texts
    text = " or ".join([first, *(other.removeprefix("should be ") for other in others)])
    return text if isinstance(value, Mapping) else f"{text}; got {shown(value)}"


def _text(detail: ErrorDetails) -> str:
    if detail["type"] == "model_type":
        return "should be a table"
    if detail["type"] == "string_type" and type(detail["input"]) in (int, float):
        return "should be a valid string, in quotes"
    text = detail["msg"].removeprefix("Value error, ").replace("dictionary", "table")
    return text.replace("Input should", "should", 1).replace("String should", "should", 1)
