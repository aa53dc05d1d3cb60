"""Converts the result of an agent's command into the step's exception, if the command failed; used by all agents."""

from __future__ import annotations

from multistep.api.phases import AGENT
from multistep.api.records import PhaseResult
from multistep.engine.plan import StepPlan
from multistep.engine.rewards import StepException
from multistep.engine.scope import at_timeout, ending, killed_for_memory

_KILLED = 128 + 9  # exit status of a shell whose child got SIGKILL


def timed_out(step: StepPlan, result: PhaseResult) -> StepException | None:
    """Return AgentTimeoutError if the agent reached its timeout, else None."""
    if not result.timed_out:
        return None
    return StepException("AgentTimeoutError", f"the agent was stopped {at_timeout(step.agent_timeout)}", AGENT)


def out_of_memory(result: PhaseResult) -> StepException | None:
    """Return OutOfMemoryError if the OOM killer killed the agent's own process, or a child process of the agent; else None.

    The agent's shell exits with status 128 + 9 if its child process was killed.
    """
    if not (killed_for_memory(result) or (result.oom_kills and result.exit_code == _KILLED)):
        return None
    return StepException("OutOfMemoryError", f"the agent {ending(result, output=False)}", AGENT)


def broken(result: PhaseResult) -> StepException | None:
    """Return RuntimeError if the agent's command could not be started, else None."""
    return None if result.error is None else StepException("RuntimeError", f"the agent {ending(result, output=False)}", AGENT)
