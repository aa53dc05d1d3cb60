"""The nop agent: records an agent phase in which nothing runs."""

from __future__ import annotations

from multistep.api.phases import AGENT
from multistep.engine.journal import StepRun
from multistep.engine.operations import Note, Script
from multistep.engine.plan import StepPlan
from multistep.engine.rewards import StepException
from multistep.engine.scope import Scope


def run(scope: Scope, step: StepPlan, run: StepRun) -> Script[StepException | None]:  # noqa: ARG001 - an agent's signature
    """Record the start and end time of the agent's phase, without running anything."""
    run.timed(AGENT, (yield Note(scope.id("agent"))))
    return None
