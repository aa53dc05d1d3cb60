"""Checkpoints in a trial's script: what each step changed is stored, and a later attempt continues after the last stored step."""

from __future__ import annotations

from multistep.api.records import Fields
from multistep.api.trial_spec import CheckpointsSpec
from multistep.api.trial_status import CheckpointStatus
from multistep.engine.journal import AttemptLost, Journal
from multistep.engine.operations import Checkpoint, Restore, Script
from multistep.engine.plan import StepPlan
from multistep.engine.scope import Scope
from multistep.engine.status_size import bounded

RESTORE_FAILED = "RestoreFailed"


def checkpoint(scope: Scope, step: StepPlan, spec: CheckpointsSpec) -> Script[CheckpointStatus]:
    """Store a checkpoint after a step. A checkpoint that is not possible is no failure: a later attempt starts earlier."""
    record = yield Checkpoint(scope.id("checkpoint"), step.index, tuple(spec.exclude), spec.max_bytes)
    found = Fields(record.result, "checkpoint")
    if (missing := found.optional_text("missing")) is not None:
        return CheckpointStatus(missing=bounded(missing))
    return CheckpointStatus(digest=found.text("digest"), bytes=found.integer("bytes"), entries=found.integer("entries"))


def restore(scope: Scope, journal: Journal) -> Script[bool]:
    """Restore the checkpoint of the last kept step; return whether that worked. A failure ends the attempt."""
    record = yield Restore(scope.id("restore"))
    failed = Fields(record.result, "restore").optional_text("error")
    if failed is not None:
        journal.lost = AttemptLost(RESTORE_FAILED, bounded(failed))
    return failed is None
