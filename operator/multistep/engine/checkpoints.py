"""Checkpoints in a trial's script: what each step changed is stored, and a later attempt continues after the last stored step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from multistep.api.content import Content
from multistep.api.failures import RESTORE_FAILED, VERIFIER_ENVIRONMENT_FAILED
from multistep.api.records import Fields, PhaseResult
from multistep.api.trial_spec import CheckpointsSpec
from multistep.api.trial_status import CheckpointStatus
from multistep.engine.journal import SETUP, VERIFIER, AttemptLost, Journal, StepRun
from multistep.engine.operations import Checkpoint, Restore, Script, Start, Upload
from multistep.engine.plan import StepPlan
from multistep.engine.rewards import StepException
from multistep.engine.scope import Scope, TrialError, ending, require
from multistep.engine.status_size import bounded, shortened

RESUME_SECONDS: Final = 600.0  # timeout of each resume.sh after a restore


def checkpoint(scope: Scope, step: StepPlan, spec: CheckpointsSpec, *, final: bool) -> Script[CheckpointStatus]:
    """Store a checkpoint after a step. A checkpoint that is not possible is no failure: a later attempt starts earlier.

    final: whether the trial ends with the step.
    """
    record = yield Checkpoint(scope.id("checkpoint"), step.index, tuple(spec.exclude), spec.max_bytes, final=final)
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


def snapshot(scope: Scope, step: StepPlan, run: StepRun) -> Script[bool]:
    """Store a checkpoint for the step's verifier, before the verification; return whether that worked.

    If it is not possible because of the size or kind of the changes, which are the agent's doing, that is an exception of the step.
    Any other cause ends the attempt.
    """
    spec = scope.plan.snapshots
    record = yield Checkpoint(
        scope.id("snapshot"), step.index, tuple(spec.exclude), spec.max_bytes,
        complete=False, alone=scope.plan.checkpoints is None,
    )  # fmt: skip
    found = Fields(record.result, "checkpoint")
    if (missing := found.optional_text("missing")) is None:
        return True
    message = f"storing the environment for the verifier: {missing}"
    if found.boolean("byAgent"):
        run.fail(StepException("RuntimeError", message, VERIFIER))
    else:
        run.lost = AttemptLost(VERIFIER_ENVIRONMENT_FAILED, bounded(message))
    return False


def restore(scope: Scope, journal: Journal) -> Script[bool]:
    """Restore the checkpoint of the last kept step; return whether that worked. A failure ends the attempt."""
    record = yield Restore(scope.id("restore"))
    failed = Fields(record.result, "restore").optional_text("error")
    if failed is not None:
        journal.lost = AttemptLost(RESTORE_FAILED, bounded(failed))
    return failed is None


def resume_steps(scope: Scope, steps: Sequence[StepPlan], timeout: float | None) -> Script[None]:
    """Run resume.sh of each of these steps that has one, after a restore: it starts again what the step left running.

    It runs from a copy outside of the workdir, as the agent may have changed the one there. timeout: seconds of each, as it may
    start programs that the agent changed; None for no timeout. Raises TrialError if one fails.
    """
    for step in steps:
        if step.resume:
            name, where = f"resume-{step.index}", scope.where
            target, content = f"{scope.runtime_dir}/{name}", Content("workdir", step.directory)
            record = yield Upload(scope.id(f"{name}-files"), target, content, user=step.agent_user, where=where)
            require(record, f"uploading workdir/ of step {step.name}")
            argv, env = ("bash", f"{target}/resume.sh"), scope.plan.environment_env
            user, cwd = step.agent_user, scope.workdir
            record = yield Start(scope.id(name), argv, user=user, cwd=cwd, env=env, timeout=timeout, where=where)
            result = PhaseResult.from_record(record)
            if result.exit_code != 0:
                raise TrialError(StepException("RuntimeError", f"resume.sh of step {step.name} {ending(result)}", SETUP))


def lost_after_restore(message: str) -> AttemptLost:
    """Return the end of an attempt that failed after a restore and before its own first step. Its restored files may be the cause;
    at the start of an attempt that restored nothing, only the task could have caused the same failure."""
    return AttemptLost(RESTORE_FAILED, bounded(f"after the restore: {message}"))
