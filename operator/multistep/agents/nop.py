"""The nop agent, whose phase is recorded although nothing runs in it."""

from __future__ import annotations

from multistep.api.trial.values import AGENT
from multistep.engine.journal.journal import StepException, StepRun
from multistep.engine.journal.operations import Note, Script
from multistep.engine.plan.plan import StepPlan
from multistep.engine.script.operation_scope import Scope


def run(scope: Scope, step: StepPlan, run: StepRun) -> Script[StepException | None]:  # noqa: ARG001 - an agent's signature
    """Record the start and end of the agent's phase without running anything."""
    run.timed(AGENT, (yield Note(scope.id("agent"))))
    return None
