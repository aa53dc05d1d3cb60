"""The built-in agents, by spec.agent.name."""

from __future__ import annotations

from collections.abc import Mapping

from multistep.agents import command, nop, oracle
from multistep.engine.script import AgentScript

AGENTS: Mapping[str, AgentScript] = {"oracle": oracle.run, "nop": nop.run, "command": command.run}
