"""Chooses the checkpoint from which a trial's next attempt continues. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from multistep.api.failures import RESTORE_FAILED
from multistep.api.trial_status import AttemptStatus, TrialStatus
from multistep.engine.plan import TrialPlan
from multistep.errors import CheckpointLost

MOST_RESTORES: Final = 2  # after so many failures to restore, the next attempt starts at step 1

Id: TypeAlias = tuple[int, int]
"""A checkpoint: the attempt that made it, and the index of the step after which it was made."""


class Below(Protocol):
    """The checkpoint below a layer (store.checkpoint_files.Base)."""

    @property
    def id(self) -> Id: ...
    @property
    def digest(self) -> str: ...


class Layer(Protocol):
    """A stored checkpoint, as far as the choice depends on it (store.checkpoint_files.Commit)."""

    @property
    def digest(self) -> str: ...
    @property
    def image_id(self) -> str: ...
    @property
    def base(self) -> Below | None: ...
    @property
    def processes(self) -> int: ...
    @property
    def shared_memory(self) -> bool: ...
    @property
    def final(self) -> bool: ...


@dataclass(frozen=True)
class Choice:
    """The chosen checkpoint. chain: attempt and step of its layers, lowest first, () for the start at step 1; refused: a line for
    each later checkpoint that says why it is not used."""

    chain: tuple[Id, ...]
    refused: tuple[str, ...]


def choose(status: TrialStatus, plan: TrialPlan, layers: Mapping[Id, Layer], damaged: Mapping[Id, str]) -> Choice:
    """Choose the last checkpoint of the attempt that has just failed and is the last of ``status.attempts``.

    Only the attempt's own checkpoints and those of the steps that it kept count: others do not belong to its results. One after the
    trial's last step is for what follows the trial. layers: the stored checkpoints; damaged: those that cannot be used, with the
    reason.
    """
    failed = [each.resumed.digest for each in status.attempts if each.resumed and each.reason == RESTORE_FAILED]
    if len(failed) >= MOST_RESTORES:
        return Choice((), (f"{len(failed)} checkpoints could not be restored, so the next attempt starts at step 1",))
    image = next((each.image_id for each in reversed(status.attempts) if each.image_id), "") or ""
    refused: list[str] = []
    shown = _shown(status.attempts)
    ended = {id for id, each in layers.items() if each.final}
    for id in _made(status.attempts[-1], {*shown, *layers, *damaged} - ended):
        try:
            chain = chain_of(id, shown.get(id), layers, damaged)
            why = _unfit([layers[each] for each in chain], plan, id[1], image, failed)
        except CheckpointLost as error:
            chain, why = (), str(error)
        if not why:
            return Choice(chain, tuple(refused))
        refused.append(f"the checkpoint after step {id[1] + 1} of attempt {id[0]} is not used: {why}")
    return Choice((), tuple(refused))


def _made(last: AttemptStatus, known: Collection[Id]) -> list[Id]:
    """Return the checkpoints that an attempt made or kept, the last one first. known: all checkpoints of the trial."""
    kept = last.resumed.attempts if last.resumed else []
    lineage = {id for id in known if id[0] == (kept[id[1]] if id[1] < len(kept) else last.number)}
    return sorted(lineage, key=lambda id: id[1], reverse=True)


def _shown(attempts: Sequence[AttemptStatus]) -> dict[Id, str]:
    """Return the digests of checkpoints in the status, which lacks the last one if the operator stopped before it wrote it."""
    found: dict[Id, str] = {}
    for each in attempts:
        kept = each.resumed.attempts if each.resumed else []
        for index, step in enumerate(each.steps):
            if step.checkpoint is not None and step.checkpoint.digest is not None:
                found[kept[index] if index < len(kept) else each.number, index] = step.checkpoint.digest
    return found


def chain_of(id: Id, digest: str | None, layers: Mapping[Id, Layer], damaged: Mapping[Id, str]) -> tuple[Id, ...]:
    """Return the layers of a checkpoint, lowest first. Raises CheckpointLost if one is missing or was changed.

    digest: the checkpoint's, None if it is not known.
    """
    chain: list[Id] = []
    below: Id | None = id
    while below is not None:
        name = f"the layer of step {below[1] + 1} of attempt {below[0]}"
        if below not in layers:
            raise CheckpointLost(damaged.get(below, f"{name} is missing"))
        layer = layers[below]
        if digest is not None and layer.digest != digest:
            raise CheckpointLost(f"{name} was changed")
        chain.append(below)
        below, digest = (layer.base.id, layer.base.digest) if layer.base is not None else (None, None)
    return tuple(reversed(chain))


def _unfit(chain: Sequence[Layer], plan: TrialPlan, step: int, image: str, failed: Sequence[str]) -> str:
    """Return why an attempt cannot continue from a complete checkpoint, "" if it can."""
    other = next((each.image_id for each in chain if each.image_id != image), image)
    if other != image:
        return f"it was made in the image {other}, and the attempt had {image}"
    if any(each.digest in failed for each in chain):
        return "it could not be restored"
    if plan.steps[step].resume:
        return ""
    return lost_with_pod(chain[-1].processes, shared_memory=chain[-1].shared_memory)


def lost_with_pod(processes: int, *, shared_memory: bool) -> str:
    """Return why a later attempt cannot continue from a checkpoint that lacks running processes or shared memory, "" if it lacks
    none. A step that misses its server would be scored as its agent's failure."""
    lost = [f"{processes} processes that the step left running"] if processes else []
    lost += ["files in /dev/shm"] if shared_memory else []
    if not lost:
        return ""
    return f"a restore loses {' and '.join(lost)}; a workdir/resume.sh of the step could start them again"
