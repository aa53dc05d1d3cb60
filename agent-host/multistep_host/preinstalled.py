"""Skips Harbor's install of agents whose program is already in the environment's image or on a volume."""

from __future__ import annotations

from harbor.agents.base import BaseAgent
from harbor.agents.installed.base import BaseInstalledAgent
from harbor.environments.base import BaseEnvironment

# In Harbor 0.25, the `install` of these agents also writes configuration or uploads a program, so it is never skipped.
CONFIGURED_BY_INSTALL = frozenset(
    {
        "acp",
        "antigravity-cli",
        "antigravity-sdk",
        "cline-cli",
        "deerflow",
        "devin",
        "eve",
        "fabric",
        "fx",
        "fx-dev",
        "junie",
        "openhands-sdk",
        "strands",
    }
)
_VERSION_SECONDS = 60


class NotPreinstalledError(Exception):
    """The environment lacks an agent's program, which is not to be installed."""


async def skip_install(agent: BaseAgent, environment: BaseEnvironment) -> None:
    """Make the agent's `setup` skip the installation, and set the agent's version from the output of its version command.

    Agents whose `install` must run (CONFIGURED_BY_INSTALL) are not changed.

    Raises:
        NotPreinstalledError: the version command fails in the environment.
    """
    if not isinstance(agent, BaseInstalledAgent) or agent.name() in CONFIGURED_BY_INSTALL:
        return
    if command := agent.get_version_command():
        found = await environment.exec(command, timeout_sec=_VERSION_SECONDS)
        if found.return_code != 0:
            path = await environment.exec('printf %s "$PATH"', timeout_sec=_VERSION_SECONDS)
            printed = (found.stderr or found.stdout or "").strip()[-500:]
            raise NotPreinstalledError(
                f"the program of {agent.name()} is not in the environment, where spec.agent.preinstalled or spec.agent.image "
                f"puts it: `{command}` exited with status {found.return_code}: {printed or 'no output'}; "
                f"PATH={(path.stdout or '').strip()[:500]}"
            )
        agent._version = agent.parse_version(found.stdout or "") or agent._version
    agent.install = _install_nothing


async def _install_nothing(environment: BaseEnvironment) -> None:
    """Do nothing, in place of an agent's `install`."""
