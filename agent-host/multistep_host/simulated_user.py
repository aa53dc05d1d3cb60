"""The simulated user of a trial: an agent that plays a user and talks to the trial's agent, through Harbor's ACP bridge.

The user's program sends each message with the command `acpx prompt`, which starts the trial's agent as a server of the Agent Client
Protocol. Unlike in Harbor 0.26, the two roles share no variables: each has the token of its own role.
"""

from __future__ import annotations

import asyncio
import logging
import shlex
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final

from harbor.agents.base import BaseAgent
from harbor.bridges.acp import ACPBridge, build_acpx_config, install_acpx, write_acpx_config
from harbor.models.agent.context import AgentContext
from harbor.models.bridge import BridgeConfig, BridgeKind
from harbor.trial.simulated_user import (
    load_user_prompt_template,
    render_user_prompt,
    validate_user_agent_version_pin,
)

from multistep_host import preinstalled
from multistep_host.environment import GuestEnvironment
from multistep_host.logs import AgentLogs
from multistep_host.phase_requests import UserSetup, UserStep
from multistep_host.variables import Variables

LOGS_NAME: Final = "user-agent"
"""Name of the directory with the user's logs, in that of the agent's."""
_CLOSE_SECONDS: Final = 30.0
_log = logging.getLogger(__name__)


class SimulatedUser:
    """The simulated user of a trial with one step."""

    def __init__(
        self, environment: GuestEnvironment, agent: BaseAgent, player: BaseAgent, variables: Variables, wanted: UserSetup
    ) -> None:
        """Create the user. player: the agent that plays it. Raises ValueError if it cannot talk to the agent, or for an invalid
        prompt template."""
        if BridgeKind.ACP not in agent.capabilities.bridges:
            raise ValueError(f"a simulated user cannot talk to the agent {agent.name()}, which does not support ACP")
        validate_user_agent_version_pin(agent.name(), agent.version(), player.name(), player.version())
        self._environment = environment
        self._agent = agent
        self._player = player
        self._variables = variables
        self._bridge = ACPBridge(BridgeConfig(kind=BridgeKind.ACP), agent)
        self._logs = AgentLogs(environment, player.logs_dir)
        directory = environment.trial_paths.trial_dir
        self._persona = _written(directory / "user-persona.md", wanted.persona)
        self._template = _written(directory / "user-prompt.j2", wanted.prompt_template)
        load_user_prompt_template(self._template, persona_path=self._persona)
        self._config: Path | None = None  # acpx's configuration in the environment
        self._context = AgentContext()

    async def set_up(self, wanted: UserSetup) -> None:
        """Set up the program that plays the user, before the agent's, unless that installs it. Sets the user's variables."""
        self._variables.replace(wanted.env)
        if not wanted.agent.preinstalled:
            with self._environment.scoped_exec_env(self._player.extra_env):
                await self._player.setup(environment=self._environment)

    async def connect(self, wanted: UserSetup) -> None:
        """Connect the user to the agent, which is set up."""
        if wanted.agent.preinstalled:
            with self._environment.scoped_exec_env(self._player.extra_env):
                await preinstalled.set_up(self._player, self._environment)
        if (await self._environment.exec("command -v acpx")).return_code != 0:
            await install_acpx(self._environment)
        with self._environment.scoped_exec_env(self._agent.extra_env):
            await self._bridge._acp_agent.acp_install(self._environment)

    async def talk(self, instruction: str, step: UserStep) -> None:
        """Have the user talk to the agent until the user ends. The agent's variables of the step must be set.

        Raises the exceptions of the user's class, and RuntimeError if the agent cannot be started.
        """
        self._logs.clear()
        self._environment.before = partial(self._logs.share, self._player)  # until the step ends
        command = self._agents_command(step.env)
        self._variables.replace(step.env)
        self._variables.refresh(self._player)
        prompt = render_user_prompt(instruction, self._bridge.prompt(), self._template, self._persona)
        with self._environment.scoped_exec_env(self._player.extra_env):
            self._config = await write_acpx_config(self._environment, build_acpx_config(command))
            started = await self._environment.exec("acpx sessions ensure")
            if started.return_code != 0:
                raise RuntimeError(f"Failed to start the ACP session for the target agent: {started.stderr}")
            context = AgentContext()
            try:
                await self._player.run(instruction=prompt, environment=self._environment, context=context)
            finally:
                self._context = context

    async def close(self) -> None:
        """End the conversation, and collect it and the user's logs. As in Harbor 0.26, a failure does not fail the step."""
        if self._config is None:
            return
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._bridge.export_trajectory(self._environment, self._agent.logs_dir / ACPBridge.trajectory_filename)
        except Exception:
            _log.exception("the conversation is not in the logs")
        await self._bridge.teardown(self._environment)
        await self._environment.exec(f"rm -f {shlex.quote(str(self._config))}")  # it has the agent's token
        await self._logs.exchange(self._player, self._context)

    def _agents_command(self, users_env: Mapping[str, str]) -> list[str]:
        """Return the command that starts the agent with its own variables and without the user's, which it inherits."""
        agent = self._agent
        env = {**agent.extra_env, **self._bridge.env(), **agent.extra_env_for_bridge(BridgeKind.ACP)}
        others = [argument for name in users_env if name not in env for argument in ("-u", name)]
        return ["env", *others, *(f"{name}={value}" for name, value in env.items()), *self._bridge._acp_agent.acp_command()]


def _written(path: Path, text: str | None) -> Path | None:
    """Write the text to a file, and return its path; None without a text."""
    if text is None:
        return None
    path.write_text(text)
    return path
