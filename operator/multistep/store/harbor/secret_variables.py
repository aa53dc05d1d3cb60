"""Finds the variables of a trial that hold secrets by their names, as Harbor 0.26 does."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from multistep.api.task.layout import TaskLayout
from multistep.api.task.task_toml import TaskConfig
from multistep.engine.plan.plan import TrialEnv
from multistep.engine.plan.resolve_templates import Unresolved, compose_variables, resolve_templates

_SENSITIVE = re.compile(r"KEY|SECRET|TOKEN(?!S)|PASSWORD|CREDENTIAL|AUTH", re.IGNORECASE)

_SWITCHES = frozenset({"true", "1", "yes", "false", "0", "no"})


def secret_values(env: TrialEnv, config: TaskConfig, layout: TaskLayout | None = None) -> set[str]:
    """Return the values of variables with secret-like names, except switches such as "1" and "true".

    The variables are the agent's env and the verifier env of task and trial, as in Harbor 0.26. In addition, they are the keys of
    all roles, and the variables of the task's compose files, because the results have the output of services. White space around a
    value, such as the last newline of a Secret's file, is not part of the secret, because a program may print the value without it.
    """
    composed = {name: env.variables[name] for name in (compose_variables(layout) if layout else ()) if name in env.variables}
    secrets = (
        secret
        for values in (env.agent, env.credentials, env.judge, env.user, config.verifier.env, env.verifier, composed)
        for secret in _sensitive_values(values, env.variables)
    )
    return {value for secret in secrets if (value := secret.strip()) and value.lower() not in _SWITCHES}


def is_sensitive(name: str) -> bool:
    """Return whether a variable's name suggests that its value is a secret, as in Harbor 0.26 (utils.env)."""
    return _SENSITIVE.search(name) is not None


def _sensitive_values(values: Mapping[str, str], variables: Mapping[str, str]) -> Iterator[str]:
    for name, value in values.items():
        if is_sensitive(name):
            try:
                yield resolve_templates({name: value}, variables)[name]
            except Unresolved:
                continue
