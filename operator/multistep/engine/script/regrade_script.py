"""The script of a regrade, which is a trial that verifies the steps of another trial, its source, again. No agent runs.

The trial's own pod only stores the records. Each step is verified in a new pod in which the files that the source's agent left are
restored. The trial's status has the source's checkpoints, and the exceptions that the source's steps had before their verification.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from multistep.api.trial.failure_table import REGRADE_INCOMPLETE
from multistep.api.trial.regrade import RegradeStatus, SourceException, SourceStep
from multistep.api.trial.status import CheckpointStatus, StepStatus
from multistep.api.trial.values import AGENT, HEALTHCHECK, SETUP, VERIFIER
from multistep.engine.journal.journal import AttemptLost, Collected, Journal, StepException, StepRun
from multistep.engine.journal.operations import Note, Script
from multistep.engine.plan.plan import StepPlan, TrialPlan
from multistep.engine.script.operation_scope import Scope
from multistep.engine.script.trial_script import add_trial_rewards, copy_exception_to_trial, goes_on, skips_verifier
from multistep.engine.script.verify_step import verify_apart
from multistep.engine.status.status_size import shortened

_BEFORE_THE_VERIFIER: Final = (SETUP, HEALTHCHECK, AGENT)


def regrade_script(scope: Scope, source: RegradeStatus, journal: Journal) -> Script[None]:
    """Verify the source's steps in order until a gate or an exception ends the trial, then compute the trial's rewards."""
    record = yield Note(scope.id("prepare"))
    journal.started_at = record.started_at
    for step in scope.plan.steps:
        if step.index >= len(source.steps):
            journal.lost = _incomplete(source, journal, step)
            return
        run = StepRun(name=step.name, trial=source.steps[step.index].trial)
        journal.steps.append(run)
        yield from _verify_again(replace(scope, step=step), step, source.steps[step.index], run)
        journal.lost = run.lost
        if run.lost is not None:
            return
        journal.completed_at = run.completed_at
        if not goes_on(scope.plan, step, run):
            if run.trial is not None:
                journal.lost = _unjudged(source, run)
                return
            break
    journal.all_steps = len(journal.steps) == len(scope.plan.steps)
    add_trial_rewards(scope.plan, journal)
    if scope.plan.single:
        copy_exception_to_trial(journal)
    journal.finished = True


def _incomplete(source: RegradeStatus, journal: Journal, step: StepPlan) -> AttemptLost:
    """Return the failure of a regrade that would continue after the source's last step. No agent ran the next step."""
    former = f"step {journal.steps[-1].name} lets the trial continue" if journal.steps else "the trial has steps"
    message = f"{former}, but trial {source.trial} ended before step {step.name}: it has no files of that step to verify"
    return AttemptLost(REGRADE_INCOMPLETE, message, final=True)


def _unjudged(source: RegradeStatus, run: StepRun) -> AttemptLost:
    """Return the failure of a regrade that would end in a step before the source's first own step."""
    why = run.exception.message if run.exception else run.gate_failure
    ends = f"step {run.name}, which trial {run.trial} ran, would end the trial"
    message = f"{ends} before the first step of trial {source.trial}: {why}"
    return AttemptLost(REGRADE_INCOMPLETE, message, final=True)


def _verify_again(scope: Scope, step: StepPlan, source: SourceStep, run: StepRun) -> Script[None]:
    record = yield Note(scope.id("begin"))
    run.started_at = record.started_at
    run.exception = _exception(source.exception)
    if is_verified(scope.plan, source):
        assert step.verifier is not None and step.verifier.environment is not None  # a regrade's plan always has both
        run.phase = VERIFIER
        run.checkpoint = CheckpointStatus(digest=source.checkpoint)
        run.collected = Collected()
        yield from verify_apart(scope, step, step.verifier, step.verifier.environment, run)
        if run.lost is not None:
            return
    record = yield Note(scope.id("end"))
    run.completed_at = record.started_at


def _exception(exception: SourceException | None) -> StepException | None:
    return StepException(exception.type, exception.message, exception.phase) if exception else None


def is_verified(plan: TrialPlan, source: SourceStep) -> bool:
    """Return whether a step of the source is verified.

    It is not if it failed before its agent ran, or if its agent failed with an exception that skips the
    verifier (engine.script.trial_script.skips_verifier).
    """
    if source.exception is not None and source.exception.phase != AGENT:
        return False
    return not skips_verifier(plan, StepRun(name=source.name, exception=_exception(source.exception)))


def source_exception(step: StepStatus) -> SourceException | None:
    """Return the exception that a step had before its verification, None if it had none."""
    exception = step.exception
    if exception is None or exception.phase is None or exception.phase not in _BEFORE_THE_VERIFIER:
        return None
    return SourceException(type=exception.type, phase=exception.phase, message=shortened(exception.message))


def unfit_steps(plan: TrialPlan, source: RegradeStatus) -> Iterator[str]:
    """Yield each reason why the plan cannot verify the source's steps."""
    planned, ran = [step.name for step in plan.steps], [step.name for step in source.steps]
    if ran != planned[: len(ran)]:
        yield f"trial {source.trial} ran the steps {', '.join(ran)}, and the task has {', '.join(planned)}"
    if not ran:
        yield f"trial {source.trial} ran no step"
