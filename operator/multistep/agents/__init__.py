"""The built-in agents, by spec.agent.name."""

from __future__ import annotations

from collections.abc import Mapping

from ..engine.script import AgentScript
from . import command, nop, oracle

AGENTS: Mapping[str, AgentScript] = {"oracle": oracle.run, "nop": nop.run, "command": command.run}
