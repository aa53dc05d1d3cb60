"""The operations of a trial's script that store and restore checkpoints.

A checkpoint has a step's changes to the file system, so that a later attempt can resume after the last stored step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from multistep.api.trial.content_references import Content
from multistep.api.trial.failure_table import RESTORE_FAILED, VERIFIER_ENVIRONMENT_FAILED
from multistep.api.trial.runner_records import Fields, PhaseResult
from multistep.api.trial.spec import CheckpointsSpec
from multistep.api.trial.status import CheckpointStatus
from multistep.api.trial.values import SETUP, VERIFIER
from multistep.engine.journal.journal import AttemptLost, Journal, StepException, StepRun
from multistep.engine.journal.operations import Checkpoint, Restore, Script, Start, Upload
from multistep.engine.plan.plan import StepPlan
from multistep.engine.script.operation_scope import Scope, TrialError, how_it_ended, require
from multistep.engine.status.status_size import bounded, shortened

STORING: Final = "storing the environment for the verifier: "
UNUSUAL: Final = "Unusual: "  # start of the runner's error for files of a kind that only a hostile process creates
RESUME_SECONDS: Final = 600.0  # timeout of each resume.sh after a restore


def store_checkpoint(scope: Scope, step: StepPlan, spec: CheckpointsSpec, *, final: bool) -> Script[CheckpointStatus]:
    """Store a checkpoint after a step. If that fails, the step does not fail, but a later attempt resumes at an earlier step.

    ``final`` means that the trial ends with this step.
    """
    record = yield Checkpoint(scope.id("checkpoint"), step.index, tuple(spec.exclude), spec.max_bytes, final=final)
    result = Fields(record.result, "checkpoint")
    if (missing := result.optional_text("missing")) is not None:
        return CheckpointStatus(missing=shortened(bounded(missing)))
    return CheckpointStatus(
        digest=result.text("digest"),
        bytes=result.integer("bytes"),
        entries=result.integer("entries"),
        processes=result.integer("processes") or None,
        shared_memory=result.boolean("sharedMemory") or None,
    )


def store_files_for_verifier(scope: Scope, step: StepPlan, run: StepRun) -> Script[bool]:
    """Store a checkpoint for the step's verifier, before the verification. Return whether it was stored.

    If the agent's changes are too large or cannot be stored, the step gets an exception. Any other cause fails the attempt. After a
    restore, the checkpoint is based on the restored one, so changes of earlier steps do not count as this step's.
    """
    spec = scope.plan.snapshots
    record = yield Checkpoint(
        scope.id("snapshot"), step.index, tuple(spec.exclude), spec.max_bytes,
        complete=False, alone=scope.plan.checkpoints is None and not scope.kept, temporary=step.compares_verdicts,
    )  # fmt: skip
    result = Fields(record.result, "checkpoint")
    if (missing := result.optional_text("missing")) is None:
        return True
    message = f"{STORING}{missing}"
    if result.boolean("byAgent"):
        run.fail(StepException("RuntimeError", message, VERIFIER))
    else:
        run.lost = AttemptLost(VERIFIER_ENVIRONMENT_FAILED, bounded(message))
    return False


def restore_checkpoint(scope: Scope, journal: Journal) -> Script[bool]:
    """Restore the checkpoint from which the attempt resumes, and return whether this worked. If not, the attempt fails."""
    record = yield Restore(scope.id("restore"))
    failed = Fields(record.result, "restore").optional_text("error")
    if failed is not None:
        journal.lost = AttemptLost(RESTORE_FAILED, bounded(failed))
    return failed is None


def resume_steps(scope: Scope, steps: Sequence[StepPlan], timeout: float | None) -> Script[None]:
    """Run the resume.sh of each step that has one, after a restore. Raises TrialError if a script fails.

    The script restarts the processes that the step had left running. It runs from a new copy outside of the workdir, because the
    agent may have changed the copy in the workdir. ``timeout`` is the limit for each script in seconds, None for no limit. It
    matters because a script may start programs that the agent changed so that they never end.
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
                raise TrialError(StepException("RuntimeError", f"resume.sh of step {step.name} {how_it_ended(result)}", SETUP))


def lost_after_restore(message: str) -> AttemptLost:
    """Return the failure of an attempt that failed after a restore and before its own first step.

    The attempt fails and not the task, because the restored files may be the cause.
    """
    return AttemptLost(RESTORE_FAILED, bounded(f"after the restore: {message}"))
