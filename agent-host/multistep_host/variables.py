"""The agent's environment variables. The operator replaces them for each step, because they contain the step's own model token.

Harbor's agents read the variables from `os.environ` and from their `extra_env`, and most agents read them again in each run. This
module updates the values that Harbor 0.26 copies when it constructs the agent.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from harbor.agents.base import BaseAgent
from harbor.agents.installed.base import BaseInstalledAgent


class Variables:
    """The agent's variables, set in this process's `os.environ`."""

    def __init__(self) -> None:
        self._env: dict[str, str] = {}
        self._shadowed: dict[str, str] = {}

    def replace(self, env: Mapping[str, str]) -> None:
        """Set these variables in `os.environ`. Restore the original values of the other variables that the previous call set."""
        for name in self._env:
            os.environ.pop(name, None)
        os.environ.update(self._shadowed)
        self._shadowed = {name: os.environ[name] for name in env if name in os.environ}
        self._env = dict(env)
        os.environ.update(self._env)

    def references(self) -> dict[str, str]:
        """Return the variables as references for Harbor's AgentConfig.env.

        Harbor resolves `${NAME}` from `os.environ`. So the configuration, which may be logged, contains no values, and Harbor
        does not resolve a value that itself looks like a reference.
        """
        return {name: f"${{{name}}}" for name in self._env}

    def refresh(self, agent: BaseAgent) -> None:
        """Update the agent object with the current variables."""
        agent._extra_env.clear()
        agent._extra_env.update(self._env)
        agent.__dict__.pop("mcp_header_env", None)  # clears a cached property, which Harbor then computes again
        _refresh_options(agent)
        _refresh_model(agent)


def _refresh_options(agent: BaseAgent) -> None:
    """Parse the agent's options again, because variables set some defaults (such as `set_web_tools_disabled` in Harbor 0.26)."""
    kwargs: dict[str, Any] = dict(agent._model_connection_kwargs)
    if agent._base_url is not None:
        kwargs["base_url"] = agent._base_url
    agent.options = type(agent).parse_options(kwargs, agent._extra_env)
    if isinstance(agent, BaseInstalledAgent):
        agent._resolved_flags = agent._flags_from_options() if agent.options is not None else agent._resolve_flag_values()
        agent._resolved_env_vars = {}  # must be empty while the two lines below compute it
        agent._resolved_env_vars = agent._resolve_env_values()
        agent._resolved_env_vars.update(agent._env_from_options())


def _refresh_model(agent: BaseAgent) -> None:
    """Update the key and URL that a model client on the agent host copied at its construction."""
    client = getattr(agent, "_llm", None)
    if client is None or not hasattr(client, "_llm_kwargs"):
        return
    connection = agent.model_connection
    if connection.api_key is not None:
        client._llm_kwargs["api_key"] = connection.api_key
    client._api_base = connection.execution_base_url
