"""Checks spec.agent.kwargs of Harbor's agents against harbor_options.json, generated from the options models of Harbor 0.25.

The check accepts each value that Harbor converts to the option's type: the string "50" for an integer, a number for a string.
"""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeAlias

from multistep.api.common.problems import shown
from multistep.api.trial.harbor_agents import suggestion

TABLE: Final = Path(__file__).with_name("harbor_options.json")
"""The options of each agent, by the agent's name. An agent that is not in the table accepts any options."""

Alternative: TypeAlias = "str | Mapping[str, Any]"
"""One allowed type of a value: its name, or an object with an enum, or with a type and bounds, as in JSON Schema."""

_TRUTHS: Final = frozenset({"0", "off", "f", "false", "n", "no", "1", "on", "t", "true", "y", "yes"})


def option_problems(agent: str, kwargs: Mapping[str, Any]) -> list[str]:
    """Return the problems with an agent's options, in the order of the options; [] for an agent that accepts any options."""
    known = _table().get(agent)
    if known is None:
        return []
    found = []
    for name, value in kwargs.items():
        if name not in known:
            found.append(f"kwargs: {agent} has no option {name!r}{suggestion(name, known)}")
        elif not any(_accepts(each, value) for each in known[name]):
            found.append(f"kwargs.{name}: must be {_described(known[name])}, not {shown(value)}")
    return found


@cache
def _table() -> Mapping[str, Mapping[str, Sequence[Alternative]]]:
    table: Mapping[str, Mapping[str, Sequence[Alternative]]] = json.loads(TABLE.read_text())
    return table


def _accepts(alternative: Alternative, value: object) -> bool:
    if isinstance(alternative, str):
        return _TYPES[alternative](value)
    if "enum" in alternative:
        return any(value == each for each in alternative["enum"])
    if not _TYPES[alternative["type"]](value):
        return False
    number = _number(value)
    within = (compares(number, alternative[name]) for name, (_, compares) in _BOUNDS.items() if name in alternative)
    return all(within)


def _number(value: object) -> float:
    """Return the number to which Harbor converts a value; NaN for a value that is not a number."""
    try:
        return float(value) if isinstance(value, (int, float, str)) else math.nan
    except (ValueError, OverflowError):
        return math.nan


def _is_truth(value: object) -> bool:
    return value.lower() in _TRUTHS if isinstance(value, str) else isinstance(value, (int, float)) and value in (0, 1)


_TYPES: Final[Mapping[str, Callable[[object], bool]]] = {
    "any": lambda _: True,
    "null": lambda value: value is None,
    "boolean": _is_truth,
    "integer": lambda value: _number(value).is_integer(),
    "number": lambda value: not math.isnan(_number(value)),
    "string": lambda value: isinstance(value, (str, int, float)) and not isinstance(value, bool),
    "path": lambda value: isinstance(value, str),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}

_NOUNS: Final = {
    "boolean": "true or false",
    "integer": "an integer",
    "number": "a number",
    "string": "a text",
    "path": "a path",
    "array": "a list",
    "object": "an object",
    "null": "null",
}
_BOUNDS: Final[Mapping[str, tuple[str, Callable[[float, float], bool]]]] = {
    "minimum": (">=", operator.ge),
    "exclusiveMinimum": (">", operator.gt),
    "maximum": ("<=", operator.le),
    "exclusiveMaximum": ("<", operator.lt),
}


def _described(alternatives: Sequence[Alternative]) -> str:
    """Return the allowed values in words, e.g. "an integer > 0 or a path". Null is omitted, because Harbor treats it as unset."""
    return " or ".join(dict.fromkeys(_noun(each) for each in alternatives if each != "null"))


def _noun(alternative: Alternative) -> str:
    if isinstance(alternative, str):
        return _NOUNS[alternative]
    if "enum" in alternative:
        return f"one of {', '.join(alternative['enum'])}"
    bounds = [f"{sign} {alternative[name]}" for name, (sign, _) in _BOUNDS.items() if name in alternative]
    return f"{_NOUNS[alternative['type']]} {' and '.join(bounds)}"
