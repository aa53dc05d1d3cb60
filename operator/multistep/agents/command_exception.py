"""Converts the result of an agent's command into the step's exception if the command failed. All agents use it."""

from __future__ import annotations

from multistep.api.trial.failure_table import AGENT_NOT_STARTED
from multistep.api.trial.runner_records import PhaseResult
from multistep.api.trial.values import AGENT
from multistep.engine.journal.journal import AttemptLost, StepException
from multistep.engine.plan.plan import StepPlan
from multistep.engine.script.operation_scope import Scope, at_timeout, how_it_ended, killed_for_memory

NOT_STARTED = (126, 127)
"""Exit statuses of a shell whose command cannot be executed or does not exist."""
SECONDS_TO_START = 30.0
"""An agent that ended later than this counts as started, whatever its exit status is."""
_NO_PROGRAM = ("NoSuchCommand", "Permission")
_KILLED = 128 + 9  # exit status of a shell whose child got SIGKILL


def timed_out(step: StepPlan, result: PhaseResult) -> StepException | None:
    """Return AgentTimeoutError if the agent reached its timeout, else None."""
    if not result.timed_out:
        return None
    return StepException("AgentTimeoutError", f"the agent was stopped {at_timeout(step.agent_timeout)}", AGENT)


def out_of_memory(result: PhaseResult) -> StepException | None:
    """Return OutOfMemoryError if the OOM killer killed the agent's own process or a child process of the agent, else None.

    The agent's shell exits with status 128 + 9 if its child process was killed.
    """
    if not (killed_for_memory(result) or (result.oom_kills and result.exit_code == _KILLED)):
        return None
    return StepException("OutOfMemoryError", f"the agent {how_it_ended(result, output=False)}", AGENT)


def not_startable(result: PhaseResult) -> StepException | None:
    """Return RuntimeError if the agent's command could not be started, else None."""
    return None if result.error is None else StepException("RuntimeError", f"the agent {how_it_ended(result, output=False)}", AGENT)


def is_first(scope: Scope) -> bool:
    """Return whether this is the first step of the trial's own agent, so that the agent cannot have removed its own program."""
    return scope.step is not None and scope.step.index == len(scope.kept) and not scope.has_own_files


def not_started(scope: Scope, result: PhaseResult, *, lacks_program: bool) -> AttemptLost | None:
    """Return why the trial fails if the program of spec.agent.command does not exist or cannot be executed, None if it started.

    ``lacks_program`` means that a lookup before the agent's start did not find a program of the shell's command. Without that
    lookup, the agent could choose the exit status of its shell, and so exclude its trial from the score.
    """
    missing = result.error is not None and result.error.code in _NO_PROGRAM
    by_shell = lacks_program and result.exit_code in NOT_STARTED and result.duration_seconds <= SECONDS_TO_START
    if not is_first(scope) or not (missing or by_shell):
        return None
    return AttemptLost(
        AGENT_NOT_STARTED,
        f"spec.agent.command {how_it_ended(result, output=False)}; the image lacks a program that it needs",
        final=True,
    )
