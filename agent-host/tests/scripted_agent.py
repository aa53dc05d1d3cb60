"""An agent for tests of the agent host, which runs its instruction as a command."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from harbor.agents.base import BaseAgent
from harbor.agents.capabilities import AgentCapabilities
from harbor.agents.installed.base import ApiRateLimitError
from harbor.agents.protocols import ACPAgentMixin
from harbor.environments.base import BaseEnvironment
from harbor.models.agent.context import AgentContext
from harbor.models.bridge import BridgeKind

ACP_AGENT = Path(__file__).with_name("acp_agent.py")


class ScriptedAgent(BaseAgent):
    """An agent that runs its instruction as a command. It reads its usage from usage.json, which the command writes to the logs."""

    capabilities = AgentCapabilities(resume=True, atif=True)

    def __init__(self, *arguments: Any, fail: str = "", **kwargs: Any) -> None:
        self.fail = fail
        super().__init__(*arguments, **kwargs)

    @staticmethod
    def name() -> str:
        return "scripted"

    def version(self) -> str:
        return "7"

    async def setup(self, environment: BaseEnvironment) -> None:
        if self.fail == "setup":
            raise RuntimeError("Agent install failed: no network")
        await environment.exec("true")

    async def run(self, instruction: str, environment: BaseEnvironment, context: AgentContext) -> None:
        await self._run("run", instruction, environment, context)

    async def resume(self, instruction: str, environment: BaseEnvironment, context: AgentContext) -> None:
        await self._run("resume", instruction, environment, context)

    async def _run(self, how: str, instruction: str, environment: BaseEnvironment, context: AgentContext) -> None:
        if instruction == "swallow cancellation":
            await swallow_cancellation(environment)
        if self.fail == "share":
            (self.logs_dir / "settings.json").write_text("{}")
        result = await environment.exec(instruction, env={"HOW": how})
        (self.logs_dir / "host.txt").write_text(f"{how} {os.environ.get('KEY')} {self._get_env('KEY')} {result.stdout}")
        if self.fail == "run":
            raise ApiRateLimitError("too many requests")
        if self.fail == "usage":
            context.n_input_tokens, context.metadata = 3, {"turns": 2}
            context.rollout_details = [{"logprobs": [[0.5]]}]

    def populate_context_post_run(self, context: AgentContext) -> None:
        usage = json.loads((self.logs_dir / "usage.json").read_text())
        context.n_input_tokens, context.n_output_tokens, context.cost_usd = usage["in"], usage["out"], usage["cost"]
        (self.logs_dir / "trajectory.json").write_text("{}")


async def swallow_cancellation(environment: BaseEnvironment) -> None:
    first = [environment.exec("echo swallowing")]
    while True:
        try:
            await (first.pop() if first else asyncio.sleep(60))
        except asyncio.CancelledError:
            continue


class ScriptedTarget(ScriptedAgent, ACPAgentMixin):
    """An agent to which a simulated user can talk: acp_agent.py, a server of the Agent Client Protocol."""

    capabilities = AgentCapabilities(atif=True, base_url=True, bridges=frozenset({BridgeKind.ACP}))

    def acp_command(self) -> list[str]:
        return [sys.executable, str(ACP_AGENT)]

    def acp_env(self) -> dict[str, str]:
        return {"OF_THE_TARGET": self._get_env("OPENAI_API_KEY") or ""}


class ScriptedUser(ScriptedAgent):
    """A simulated user of five turns: it asks its model for a message, and sends the message to the agent."""

    async def run(self, instruction: str, environment: BaseEnvironment, context: AgentContext) -> None:
        (self.logs_dir / "prompt.txt").write_text(instruction)
        ask = f"message=$({sys.executable} -c 'import acp_agent, sys; print(acp_agent.ask(sys.argv[1]))' next)"
        for _ in range(5):
            talk = await environment.exec(
                f'test -s {self.environment_logs_dir}/prompt.txt && {ask} && acpx prompt "$message"',
                env={"PYTHONPATH": str(ACP_AGENT.parent)},
            )
            if talk.return_code != 0:
                raise RuntimeError(talk.stderr)
        if self.fail == "run":
            raise ApiRateLimitError("too many requests")
        context.n_input_tokens = 5
