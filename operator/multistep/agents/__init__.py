"""Selects the script that runs a trial's agent, which is a generator of operations for the runner and the agent host."""

from __future__ import annotations

from collections.abc import Mapping

from multistep.agents import command, harbor, nop, oracle
from multistep.engine.plan.plan import TrialPlan
from multistep.engine.script.trial_script import AgentScript

BUILT_IN: Mapping[str, AgentScript] = {
    "oracle": AgentScript(oracle.run),
    "nop": AgentScript(nop.run),
    "command": AgentScript(command.run),
}
"""The operator's own agents, by spec.agent.name."""

HARBOR = AgentScript(harbor.run, harbor.setup)
"""The script of every Harbor agent. The agent host runs the agent itself."""


def script_of(plan: TrialPlan) -> AgentScript:
    """Return the script that runs the trial's agent."""
    return HARBOR if plan.hosted is not None else BUILT_IN[plan.agent_name]
