"""Finds the variables of a trial that templates of its task and spec use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from multistep.api.task_toml import TaskConfig
from multistep.api.trial_spec import TrialSpec
from multistep.engine.templates import referenced


def template_tables(config: TaskConfig) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield the path and the content of every table of task.toml whose values may be templates."""
    yield "environment.env", config.environment.env
    yield "solution.env", config.solution.env
    verifiers = [("verifier", config.verifier)]
    verifiers += [(f"steps[{index}].verifier", step.verifier) for index, step in enumerate(config.steps or [])]
    for where, verifier in verifiers:
        yield f"{where}.env", verifier.env
    for where, verifier in verifiers:
        if verifier.environment is not None:
            yield f"{where}.environment.env", verifier.environment.env


def used_variables(config: TaskConfig) -> frozenset[str]:
    """Return the names of all variables that templates of task.toml refer to."""
    return frozenset(name for _, env in template_tables(config) for value in env.values() if (name := referenced(value)))


def unused_variables(config: TaskConfig, spec: TrialSpec) -> list[str]:
    """Return the names of spec.variables that no template refers to, and that therefore no process receives."""
    values = [each.value or "" for each in (*spec.agent.env, *spec.verifier.env)]
    used = used_variables(config).union(filter(None, map(referenced, values)))
    return [each.name for each in spec.variables if each.name not in used]
