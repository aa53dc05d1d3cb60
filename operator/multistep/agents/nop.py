"""The nop agent: records the agent's phase, but runs nothing."""

from __future__ import annotations

from ..engine.journal import AGENT, StepRun
from ..engine.operations import Note, Script
from ..engine.plan import StepPlan
from ..engine.rewards import StepException
from ..engine.scope import Scope


def run(scope: Scope, step: StepPlan, run: StepRun) -> Script[StepException | None]:  # noqa: ARG001 - an agent's signature
    """Record the time of the agent's phase."""
    run.timed(AGENT, (yield Note(scope.id("agent"))))
    return None
