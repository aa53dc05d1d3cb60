"""Replaces ``${NAME}`` and ``${NAME:-default}`` in environment values by the trial's variables, as in Harbor 0.26 (utils.env)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from multistep.api.task.layout import TaskLayout
from multistep.api.task.task_toml import TaskConfig
from multistep.api.trial.spec import TrialSpec
from multistep.engine.plan.task_steps import verifiers_of
from multistep.errors import InvalidTask

_TEMPLATE = re.compile(r"\$\{([^}:]+)(?::-(.*))?\}")


class Unresolved(Exception):
    """A template names a variable that is not set, and has no default."""

    def __init__(self, key: str, name: str) -> None:
        """Create the error. ``key`` is the environment variable whose value is the template, ``name`` the variable that is not
        set."""
        super().__init__(
            f"{key}: variable {name!r} is not set; add it to spec.variables or give it a default: ${{{name}:-default}}"
        )
        self.key = key
        self.name = name


def resolve_templates(env: Mapping[str, str], variables: Mapping[str, str]) -> dict[str, str]:
    """Return the values with templates resolved. Raises Unresolved.

    Only a whole value can be a template, so ``pre-${NAME}`` stays as it is.
    """
    return {key: _value(key, value, variables) for key, value in env.items()}


def resolved_field(field: str, env: Mapping[str, str], variables: Mapping[str, str]) -> dict[str, str]:
    """Return the values of a field of task.toml with templates resolved. Raises InvalidTask for an unset variable."""
    try:
        return resolve_templates(env, variables)
    except Unresolved as error:
        raise InvalidTask(str(error), kind="ValueError", field=field) from error


def referenced_variable(value: str) -> str | None:
    """Return the name of the variable to which a template refers, e.g. NAME for ``${NAME}``, or None if the value is no
    template."""
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


def template_tables(config: TaskConfig) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield the path and the content of every table of task.toml whose values may be templates."""
    yield "environment.env", config.environment.env
    yield "solution.env", config.solution.env
    verifiers = verifiers_of(config)
    for where, verifier in verifiers:
        yield f"{where}.env", verifier.env
    for where, verifier in verifiers:
        if verifier.environment is not None:
            yield f"{where}.environment.env", verifier.environment.env


def compose_variables(layout: TaskLayout) -> dict[str, str]:
    """Return the names of the trial's variables that a task's compose files use, each with the place where it is used."""
    return {name: place for services in layout.compose_files for name, place in services.variables.items()}


def used_variables(config: TaskConfig, layout: TaskLayout) -> frozenset[str]:
    """Return the names of all variables that templates of task.toml and compose files refer to."""
    named = (name for _, env in template_tables(config) for value in env.values() if (name := referenced_variable(value)))
    return frozenset((*named, *compose_variables(layout)))


def unused_variables(config: TaskConfig, layout: TaskLayout, spec: TrialSpec) -> list[str]:
    """Return the names of spec.variables to which no template refers. No process gets their values."""
    values = [variable.value or "" for variable in (*spec.agent.env, *spec.verifier.env)]
    used = used_variables(config, layout).union(filter(None, map(referenced_variable, values)))
    return [variable.name for variable in spec.variables if variable.name not in used]
