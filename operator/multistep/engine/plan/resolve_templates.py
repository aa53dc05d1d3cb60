"""Resolves ``${NAME}`` and ``${NAME:-default}`` in environment values from the trial's variables, as in Harbor 0.25 (utils.env)."""

from __future__ import annotations

import re
from collections.abc import Mapping

from multistep.errors import InvalidTask

_TEMPLATE = re.compile(r"\$\{([^}:]+)(?::-(.*))?\}")


class Unresolved(Exception):
    """A template names a variable that is not set, and has no default. name: the variable that is not set; key: the environment
    variable whose value is the template."""

    def __init__(self, key: str, name: str) -> None:
        super().__init__(
            f"{key}: variable {name!r} is not set; add it to spec.variables or give it a default: ${{{name}:-default}}"
        )
        self.key = key
        self.name = name


def resolve(env: Mapping[str, str], variables: Mapping[str, str]) -> dict[str, str]:
    """Return the values with templates resolved. A template is a whole value: ``pre-${NAME}`` is literal. Raises Unresolved."""
    return {key: _value(key, value, variables) for key, value in env.items()}


def resolved_field(field: str, env: Mapping[str, str], variables: Mapping[str, str]) -> dict[str, str]:
    """Return the values of a field of task.toml with templates resolved. Raises InvalidTask."""
    try:
        return resolve(env, variables)
    except Unresolved as error:
        raise InvalidTask(str(error), kind="ValueError", field=field) from error


def referenced(value: str) -> str | None:
    """Return the name of the variable to which a template refers, e.g. NAME for ``${NAME}``; None if the value is no template."""
    match = _TEMPLATE.fullmatch(value)
    return match.group(1) if match else None


def _value(key: str, value: str, variables: Mapping[str, str]) -> str:
    match = _TEMPLATE.fullmatch(value)
    if match is None:
        return value
    name, default = match.groups()
    if name in variables:
        return variables[name]
    if default is None:
        raise Unresolved(key, name)
    return default
