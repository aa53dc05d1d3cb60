"""How any agent's command can end badly."""

from __future__ import annotations

from ..api.records import PhaseResult
from ..engine.journal import AGENT
from ..engine.plan import StepPlan
from ..engine.rewards import StepException
from ..engine.scope import at_limit, ending, killed_for_memory

_KILLED = 128 + 9  # what a shell makes of SIGKILL


def timed_out(step: StepPlan, result: PhaseResult) -> StepException | None:
    """AgentTimeoutError, if the limit was reached."""
    if not result.timed_out:
        return None
    return StepException("AgentTimeoutError", f"the agent was stopped {at_limit(step.agent_timeout)}", AGENT)


def out_of_memory(result: PhaseResult) -> StepException | None:
    """OutOfMemoryError, if the kernel killed the agent, or a process of a shell that then said so (128 + 9)."""
    if not (killed_for_memory(result) or (result.oom_kills and result.exit_code == _KILLED)):
        return None
    return StepException("OutOfMemoryError", f"the agent {ending(result, output=False)}", AGENT)


def broken(result: PhaseResult) -> StepException | None:
    """RuntimeError, if the command could not be started at all."""
    return None if result.error is None else StepException("RuntimeError", f"the agent {ending(result, output=False)}", AGENT)
