"""Finds the variables of a trial that templates of its task and spec use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from multistep.api.task.layout import TaskLayout
from multistep.api.task.task_toml import TaskConfig
from multistep.api.trial.spec import TrialSpec
from multistep.engine.plan.resolve_templates import referenced
from multistep.engine.plan.task_steps import verifiers_of


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
    """Return the variables of the trial that a task's compose files use: for each name, the place in the file."""
    return {name: place for each in layout.compose_files for name, place in each.variables.items()}


def used_variables(config: TaskConfig, layout: TaskLayout) -> frozenset[str]:
    """Return the names of all variables that templates of task.toml and compose files refer to."""
    named = (name for _, env in template_tables(config) for value in env.values() if (name := referenced(value)))
    return frozenset((*named, *compose_variables(layout)))


def unused_variables(config: TaskConfig, layout: TaskLayout, spec: TrialSpec) -> list[str]:
    """Return the names of spec.variables to which no template refers, so that no process gets their values."""
    values = [each.value or "" for each in (*spec.agent.env, *spec.verifier.env)]
    used = used_variables(config, layout).union(filter(None, map(referenced, values)))
    return [each.name for each in spec.variables if each.name not in used]
