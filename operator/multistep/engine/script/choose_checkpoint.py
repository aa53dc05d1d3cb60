"""Chooses the checkpoint from which a trial's next attempt continues. All functions are pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from multistep.api.common.plural import plural
from multistep.api.trial.failure_table import AGENT_SETUP_FAILED, RESTORE_FAILED, RETRIED_BY_SPEC
from multistep.api.trial.status import ANOTHER_TRIAL, AttemptStatus, StepStatus, TrialStatus
from multistep.engine.journal.journal import AttemptLost
from multistep.engine.plan.plan import TrialPlan
from multistep.engine.script.checkpoint_operations import lost_after_restore
from multistep.engine.script.trial_script import goes_on
from multistep.engine.status.trial_status import step_run
from multistep.errors import CheckpointLost

MAX_RESTORES: Final = 2  # after this number of failed restores, the next attempt starts where the first attempt started

CheckpointId: TypeAlias = tuple[int, int]
"""Identifies a checkpoint by the attempt that stored it and the index of the step after which it was stored."""


class LayerBase(Protocol):
    """The checkpoint on which a layer is based, implemented by store.checkpoints.checkpoint_files.BaseCheckpoint."""

    @property
    def id(self) -> CheckpointId: ...
    @property
    def digest(self) -> str: ...


class Layer(Protocol):
    """The fields of a stored checkpoint (store.checkpoints.checkpoint_files.CheckpointCommit) on which the choice depends.

    A checkpoint is a layer, because it has only the changes since the checkpoint on which it is based.
    """

    @property
    def digest(self) -> str: ...
    @property
    def image_id(self) -> str: ...
    @property
    def base(self) -> LayerBase | None: ...
    @property
    def processes(self) -> int: ...
    @property
    def shared_memory(self) -> bool: ...
    @property
    def final(self) -> bool: ...


@dataclass(frozen=True)
class CheckpointChoice:
    """The checkpoint from which the next attempt continues, and the reasons against later checkpoints."""

    chain: tuple[CheckpointId, ...]
    """The layers of the checkpoint, lowest first; () if no checkpoint can be used. The next attempt then starts at step 1, or the
    trial fails if it started from another trial's checkpoint."""
    refused: tuple[str, ...]
    """For each checkpoint that is not used, a line with the reason."""


def blame_checkpoint(status: TrialStatus, lost: AttemptLost) -> AttemptLost:
    """Return the failure of the current attempt, changed to RestoreFailed if the restored checkpoint seems to be the cause.

    That is the case if the agent's setup has failed twice after a restore of the same checkpoint. After one failure, another cause
    is more likely, e.g. an outage of a registry, so the next attempt resumes from the same checkpoint. A checkpoint of another
    trial is never blamed, because this trial's agent cannot have changed its files.
    """
    resumed = status.resumed
    if resumed is None or not any(resumed.attempts) or lost.reason != AGENT_SETUP_FAILED:
        return lost
    before = any(
        attempt.reason == AGENT_SETUP_FAILED and attempt.resumed and attempt.resumed.digest == resumed.digest
        for attempt in status.attempts
    )
    return lost_after_restore(lost.message) if before else lost


def choose_checkpoint(
    status: TrialStatus, plan: TrialPlan, layers: Mapping[CheckpointId, Layer], damaged: Mapping[CheckpointId, str]
) -> CheckpointChoice:
    """Choose the last usable checkpoint of the attempt that has just failed (the last attempt in ``status.attempts``).

    The candidates are the attempt's own checkpoints and the earlier checkpoints on which they build. The checkpoint after the
    trial's last step is no candidate, because it is only for later trials. After MAX_RESTORES failed restores, the only candidate
    is the checkpoint from which the trial started. That one is a copy of another trial's checkpoint, so the trial's own agent
    cannot have changed it. ``layers`` has the stored checkpoints, and ``damaged`` the reason for each unusable checkpoint.
    After an exception with which the spec starts the trial again, it is the only candidate, too: no step that went well is kept.
    """
    failed = [attempt.resumed.digest for attempt in status.attempts if attempt.resumed and attempt.reason == RESTORE_FAILED]
    whole = status.attempts[-1].reason == RETRIED_BY_SPEC
    spent, start = whole or len(failed) >= MAX_RESTORES, (ANOTHER_TRIAL, plan.branch.kept - 1)
    lost = "the trial runs again" if whole else f"{plural(len(failed), 'checkpoint')} could not be restored"
    if spent and not plan.branch.kept:
        return CheckpointChoice((), (f"{lost}, so the next attempt starts at step 1",))
    excluded = _excluded(failed, layers[start].digest if start in layers else "")
    image = next((attempt.image_id for attempt in reversed(status.attempts) if attempt.image_id), "") or ""
    refused: list[str] = []
    shown = _shown(status.attempts)
    ended = {id for id, layer in layers.items() if layer.final}
    known = {*shown, *layers, *damaged, *([start] if plan.branch.kept else [])} - ended
    for id in _lineage(status.attempts[-1], known):
        if id[1] < start[1]:
            break
        try:
            chain = chain_of(id, shown.get(id), layers, damaged)
            why = _unfit([layers[layer_id] for layer_id in chain], plan, id[1], image, excluded)
        except CheckpointLost as error:
            chain, why = (), str(error)
        if not why and spent and id != start:
            why = lost
        if not why:
            return CheckpointChoice(chain, tuple(refused))
        refused.append(f"the checkpoint after step {id[1] + 1} of {_attempt(id)} is not used: {why}")
    return CheckpointChoice((), tuple(refused))


def _excluded(failed: Sequence[str], start: str) -> Collection[str]:
    """Return the digests of the checkpoints that are not restored again, because their restore failed.

    ``failed`` has the checkpoint's digest for each attempt whose restore failed. ``start`` is the digest of the checkpoint from
    which the trial started. That checkpoint is retried until its restore has failed MAX_RESTORES times, because no earlier one
    exists.
    """
    return {digest for digest in failed if digest != start or failed.count(digest) >= MAX_RESTORES}


def _attempt(id: CheckpointId) -> str:
    return "the other trial" if id[0] == ANOTHER_TRIAL else f"attempt {id[0]}"


def _lineage(last: AttemptStatus, known: Collection[CheckpointId]) -> list[CheckpointId]:
    """Return the checkpoints after the steps that an attempt ran or kept, starting with the last step.

    ``known`` are all checkpoints of the trial.
    """
    kept = last.resumed.attempts if last.resumed else []
    lineage = {id for id in known if id[0] == (kept[id[1]] if id[1] < len(kept) else last.number)}
    return sorted(lineage, key=lambda id: id[1], reverse=True)


def _shown(attempts: Sequence[AttemptStatus]) -> dict[CheckpointId, str]:
    """Return the digests of the checkpoints that the status of the attempts names.

    The status lacks the last checkpoint if the operator stopped before it wrote the status.
    """
    digests: dict[CheckpointId, str] = {}
    for attempt in attempts:
        kept = attempt.resumed.attempts if attempt.resumed else []
        for index, step in enumerate(attempt.steps):
            if step.checkpoint is not None and step.checkpoint.digest is not None:
                digests[kept[index] if index < len(kept) else attempt.number, index] = step.checkpoint.digest
    return digests


def chain_of(
    id: CheckpointId, digest: str | None, layers: Mapping[CheckpointId, Layer], damaged: Mapping[CheckpointId, str]
) -> tuple[CheckpointId, ...]:
    """Return the layers of a checkpoint, lowest first. Raises CheckpointLost if a layer is missing or was changed.

    ``digest`` is the digest of the checkpoint, None if it is unknown.
    """
    chain: list[CheckpointId] = []
    below: CheckpointId | None = id
    while below is not None:
        name = f"the layer of step {below[1] + 1} of {_attempt(below)}"
        if below not in layers:
            raise CheckpointLost(damaged.get(below, f"{name} is missing"))
        layer = layers[below]
        if digest is not None and layer.digest != digest:
            raise CheckpointLost(f"{name} was changed")
        chain.append(below)
        below, digest = (layer.base.id, layer.base.digest) if layer.base is not None else (None, None)
    return tuple(reversed(chain))


def unfit_start(plan: TrialPlan, steps: Sequence[StepStatus], last: Layer) -> str:
    """Return why a trial cannot start from another trial's checkpoint, "" if it can. The restore compares the images later.

    ``steps`` are the steps that the checkpoint contains, as the other trial reported them. ``last`` is the checkpoint's highest
    layer.
    """
    kept = plan.steps[: plan.branch.kept]
    has, needs = [step.name for step in steps], [step.name for step in kept]
    if has != needs:
        return f"it has the steps {', '.join(has)}, and those of this trial's task are {', '.join(needs)}"
    for step, ended in zip(kept, map(step_run, steps), strict=True):
        if not goes_on(plan, step, ended):
            why = ended.exception.type if ended.exception else ended.gate_failure
            return f"no step follows step {step.name}: {why}"
    return "" if kept[-1].resume else lost_with_pod(last.processes, shared_memory=last.shared_memory)


def _unfit(chain: Sequence[Layer], plan: TrialPlan, step: int, image: str, excluded: Collection[str]) -> str:
    """Return why an attempt cannot resume from a checkpoint whose layers all exist, "" if it can.

    ``step`` is the index of the checkpoint's step. ``image`` is the image id of the trial's earlier attempts, "" if unknown.
    ``excluded`` are the digests of checkpoints that are not restored again.
    """
    other = next((layer.image_id for layer in chain if image and layer.image_id != image), image)
    if other != image:
        return f"it was made in the image {other}, and the attempt had {image}"
    if any(layer.digest in excluded for layer in chain):
        return "it could not be restored"
    if plan.steps[step].resume:
        return ""
    return lost_with_pod(chain[-1].processes, shared_memory=chain[-1].shared_memory)


def lost_with_pod(processes: int, *, shared_memory: bool) -> str:
    """Return why a later attempt cannot resume from a checkpoint that lacks running processes or shared memory, "" if it lacks
    neither.

    If, for example, a server were missing, the failure of the next step would count as the agent's.
    """
    lost = [f"{processes} processes that the step left running"] if processes else []
    lost += ["files in /dev/shm"] if shared_memory else []
    if not lost:
        return ""
    return f"a restore loses {' and '.join(lost)}; a workdir/resume.sh of the step could start them again"
