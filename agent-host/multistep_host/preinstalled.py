"""Sets up agents whose program is already in the environment's image or on a volume: Harbor configures them without an
installation."""

from __future__ import annotations

from harbor.agents.base import BaseAgent
from harbor.agents.installed.base import BaseInstalledAgent
from harbor.environments.base import BaseEnvironment

_VERSION_SECONDS = 60


class NotPreinstalledError(Exception):
    """The environment lacks an agent's program, which is not to be installed."""


async def set_up(agent: BaseAgent, environment: BaseEnvironment) -> None:
    """Call the agent's `setup` with Harbor's option skip_install: it configures the agent, and sets its version to that of the
    program in the environment. Raises NotPreinstalledError if that program does not tell its version."""
    if not isinstance(agent, BaseInstalledAgent):
        await agent.setup(environment)
        return
    agent._skip_install = True
    try:
        await agent.setup(environment)
    except RuntimeError:  # of a configuration, which may need the program
        await _require_program(agent, environment)
        raise
    if agent._version is None:
        await _require_program(agent, environment)


async def _require_program(agent: BaseInstalledAgent, environment: BaseEnvironment) -> None:
    """Raise NotPreinstalledError if the agent's version command fails. Return if it succeeds, or if the agent has none."""
    if not (command := agent.get_version_command()):
        return
    found = await environment.exec(command, timeout_sec=_VERSION_SECONDS)
    if found.return_code == 0:
        return
    path = await environment.exec('printf %s "$PATH"', timeout_sec=_VERSION_SECONDS)
    printed = (found.stderr or found.stdout or "").strip()[-500:]
    raise NotPreinstalledError(
        f"the program of {agent.name()} is not in the environment, where spec.agent.preinstalled or spec.agent.image "
        f"puts it: `{command}` exited with status {found.return_code}: {printed or 'no output'}; "
        f"PATH={(path.stdout or '').strip()[:500]}"
    )
