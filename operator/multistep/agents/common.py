"""How any agent's command can end badly."""

from __future__ import annotations

from ..api.records import PhaseResult
from ..engine.journal import AGENT
from ..engine.plan import StepPlan
from ..engine.rewards import StepException
from ..engine.scope import at_limit, ending


def timed_out(step: StepPlan, result: PhaseResult) -> StepException | None:
    """AgentTimeoutError, if the limit was reached."""
    if not result.timed_out:
        return None
    return StepException("AgentTimeoutError", f"the agent was stopped {at_limit(step.agent_timeout)}", AGENT)


def broken(result: PhaseResult) -> StepException | None:
    """RuntimeError, if the command could not be started at all."""
    return None if result.error is None else StepException("RuntimeError", f"the agent {ending(result)}", AGENT)
