"""Checkpoints in a trial's script: what each step changed is stored, and a later attempt continues after the last stored step."""

from __future__ import annotations

from multistep.api.content import Content
from multistep.api.failures import RESTORE_FAILED
from multistep.api.records import Fields, PhaseResult
from multistep.api.trial_spec import CheckpointsSpec
from multistep.api.trial_status import CheckpointStatus
from multistep.engine.journal import SETUP, AttemptLost, Journal
from multistep.engine.operations import Checkpoint, Restore, Script, Start, Upload
from multistep.engine.plan import StepPlan
from multistep.engine.rewards import StepException
from multistep.engine.scope import Scope, TrialError, ending, require
from multistep.engine.status_size import bounded, shortened


def checkpoint(scope: Scope, step: StepPlan, spec: CheckpointsSpec) -> Script[CheckpointStatus]:
    """Store a checkpoint after a step. A checkpoint that is not possible is no failure: a later attempt starts earlier."""
    record = yield Checkpoint(scope.id("checkpoint"), step.index, tuple(spec.exclude), spec.max_bytes)
    found = Fields(record.result, "checkpoint")
    if (missing := found.optional_text("missing")) is not None:
        return CheckpointStatus(missing=shortened(bounded(missing)))
    return CheckpointStatus(
        digest=found.text("digest"),
        bytes=found.integer("bytes"),
        entries=found.integer("entries"),
        processes=found.integer("processes") or None,
        shared_memory=found.boolean("sharedMemory") or None,
    )


def restore(scope: Scope, journal: Journal) -> Script[bool]:
    """Restore the checkpoint of the last kept step; return whether that worked. A failure ends the attempt."""
    record = yield Restore(scope.id("restore"))
    failed = Fields(record.result, "restore").optional_text("error")
    if failed is not None:
        journal.lost = AttemptLost(RESTORE_FAILED, bounded(failed))
    return failed is None


def resume_steps(scope: Scope) -> Script[None]:
    """Run resume.sh of each kept step that has one, after a restore: it starts again what the step left running.

    It runs from a copy outside of the workdir, as the agent may have changed the one there. Raises TrialError if one fails.
    """
    for step in scope.plan.steps[: len(scope.kept)]:
        if step.resume:
            target = f"{scope.runtime_dir}/resume-{step.index}"
            record = yield Upload(
                scope.id(f"resume-{step.index}-files"), target, Content("workdir", step.directory), user=step.agent_user
            )
            require(record, f"uploading workdir/ of step {step.name}")
            argv = ("bash", f"{target}/resume.sh")
            record = yield Start(
                scope.id(f"resume-{step.index}"), argv, user=step.agent_user, cwd=scope.workdir, env=scope.plan.environment_env
            )
            result = PhaseResult.from_record(record)
            if result.exit_code != 0:
                raise TrialError(StepException("RuntimeError", f"resume.sh of step {step.name} {ending(result)}", SETUP))


def lost_after_restore(message: str) -> AttemptLost:
    """Return the end of an attempt that failed after a restore and before its own first step. Its restored files may be the cause;
    at the start of an attempt that restored nothing, only the task could have caused the same failure."""
    return AttemptLost(RESTORE_FAILED, bounded(f"after the restore: {message}"))
