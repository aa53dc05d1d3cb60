"""Variables given on the command line: values for templates in task.toml and compose files, and for the agent's environment."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from multistep.client.submit.manifests import Manifest, secret_of, variable_from_secret
from multistep.errors import UsageError

_VARIABLE = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")


@dataclass(frozen=True)
class Values:
    """Values from the command line, by name. They are stored in Secrets of the trial or sweep."""

    variables: Mapping[str, str] = field(default_factory=dict)
    """The values of --var."""
    agent: Mapping[str, str] = field(default_factory=dict)
    """The values of --agent-env."""

    def secrets(self, owner: str) -> list[Manifest]:
        """Return the Secrets with these values: at most one for --var and one for --agent-env."""
        parts = ((_variables_name(owner), self.variables), (_agent_env_name(owner), self.agent))
        return [secret_of(name, values) for name, values in parts if values]

    def variable_entries(self, owner: str) -> list[Manifest]:
        """Return the entries for spec.variables, which refer to the Secret."""
        return [variable_from_secret(each, _variables_name(owner), each) for each in self.variables]

    def agent_entries(self, owner: str) -> list[Manifest]:
        """Return the entries for spec.agent.env, which refer to the Secret."""
        return [variable_from_secret(each, _agent_env_name(owner), each) for each in self.agent]


def _variables_name(owner: str) -> str:
    return f"{owner}-variables"


def _agent_env_name(owner: str) -> str:
    return f"{owner}-agent-env"


def given_values(variables: Sequence[str], agent_env: Sequence[str]) -> Values:
    """Return the values of --var and --agent-env. Raises UsageError if an option is invalid."""
    return Values(_values("--var", variables), _values("--agent-env", agent_env))


def _values(option: str, given: Sequence[str]) -> dict[str, str]:
    """Return the values in texts ``NAME=VALUE`` or ``NAME``, by name. ``NAME`` stands for the value of this process's environment
    variable. Raises UsageError if the variable does not exist or the name is invalid."""
    values: dict[str, str] = {}
    for each in given:
        name, separator, value = each.partition("=")
        if not separator and name not in os.environ:
            raise UsageError(
                f"{option} {name}: the environment here has no variable {name}; give a value with {option} {name}=VALUE"
            )
        values[_variable_name(name, f"{option} {name}")] = value if separator else os.environ[name]
    return values


def from_secret(option: str, text: str) -> Manifest:
    """Return the variable that ``NAME=SECRET:KEY`` describes. Raises UsageError if the text has another form."""
    name, _, source = text.partition("=")
    secret, _, key = source.partition(":")
    if not secret or not key:
        raise UsageError(f"{option} {text}: must be NAME=SECRET:KEY")
    return variable_from_secret(_variable_name(name, f"{option} {text}"), secret, key)


def _variable_name(name: str, option: str) -> str:
    if not _VARIABLE.fullmatch(name):
        raise UsageError(f"{option}: a name consists of letters, digits, '_', '.' and '-', and does not start with a digit")
    return name
