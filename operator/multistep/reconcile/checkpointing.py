"""Stores and restores checkpoints of a trial's environment, in its exec sessions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from multistep.api.records import Record
from multistep.api.trial import MultiStepTrial
from multistep.api.trial_status import CheckpointStatus
from multistep.engine.operations import Checkpoint, Restore
from multistep.engine.plan import TrialPlan
from multistep.engine.scope import KeptStep, Scope
from multistep.errors import CollectionCut, RunnerError, StoreError, StreamLost
from multistep.runner_client.bodies import DownloadResult
from multistep.runner_client.checkpoints import CHECKPOINT_PROTOCOL, Packed
from multistep.runner_client.session import Session
from multistep.store.checkpoints import NAMES, Blob, Commit, Name
from multistep.store.volume import TrialKey, Volume

# Errors of the runner after which a step has no checkpoint. Others are those of the session, which is repeated.
_NOT_POSSIBLE: Final = frozenset({"NoBase", "Running", "TooLarge", "TooSlow", "Unreadable", "Changed"})
Commits: TypeAlias = Mapping[tuple[int, int], Commit]
_MANIFEST_BYTES: Final = 1 << 30  # of at most 500,000 entries
_NOT_RESTORED: Final = frozenset({"Damaged", "Restore", "TooLarge", "TooSlow", "DiskFull"})


@dataclass(frozen=True)
class Environment:
    """The environment whose checkpoint is made or restored. image_id: its image, as resolved by the kubelet; protocol: the version
    that its runner speaks; records: the records of its trial, by id."""

    trial: MultiStepTrial
    plan: TrialPlan
    scope: Scope
    image_id: str
    protocol: int
    records: Mapping[str, Record]

    @property
    def key(self) -> TrialKey:
        """Return the key of the trial's results."""
        return TrialKey.of(self.trial)


class Checkpointing:
    """Performs the operations Checkpoint and Restore."""

    def __init__(self, volume: Volume) -> None:
        self._volume = volume

    async def kept(self, trial: MultiStepTrial) -> tuple[Commit, ...]:
        """Return the checkpoint from which the trial's attempt continues, lowest layer first; () if it started at step 1."""
        resumed = trial.status.resumed
        if resumed is None:
            return ()
        top = (resumed.attempts[-1], len(resumed.attempts) - 1)
        return await self._volume.checkpoints.chain(TrialKey.of(trial), top)

    async def perform(self, session: Session, operation: Checkpoint | Restore, environment: Environment) -> Record:
        """Perform an operation and return its record. Idempotent.

        The record of an operation that is not possible says why: as ``missing`` (engine.checkpoints.checkpoint), or as ``error``.
        """
        problem, known = ("missing", _NOT_POSSIBLE) if isinstance(operation, Checkpoint) else ("error", _NOT_RESTORED)
        if environment.protocol < CHECKPOINT_PROTOCOL:
            return await session.note(operation.id, {problem: "the runner is of a release without checkpoints"})
        try:
            if isinstance(operation, Checkpoint):
                return await self._store(session, operation, environment)
            return await self._restore(session, operation, environment)
        except RunnerError as error:
            if error.code not in known:
                raise
            return await session.note(operation.id, {problem: f"{error.code}: {str(error)[:500]}"})

    async def _store(self, session: Session, operation: Checkpoint, environment: Environment) -> Record:
        """Store what the step changed, then let the runner continue from there. A checkpoint that is stored already stays."""
        known = await self._volume.checkpoints.all(environment.key)
        commit = known.get((environment.scope.attempt, operation.step)) or await self._make(session, operation, environment, known)
        await session.operate("commit", {"id": f"{operation.id}-commit", "manifest": commit.digest})
        return await session.note(operation.id, {"digest": commit.digest, "bytes": commit.bytes, "entries": commit.entries})

    async def _make(self, session: Session, operation: Checkpoint, environment: Environment, known: Commits) -> Commit:
        key, spool = environment.key, self._volume.collections.spool
        room = await self._volume.checkpoints.room(key, environment.scope.attempt, operation.step)
        async with spool(key, room=room) as layer, spool(key, max_bytes=_MANIFEST_BYTES) as manifest:
            try:
                limit = min(operation.max_bytes, room.bytes)
                packed = await session.checkpoint(operation.exclude, limit, layer.write, manifest.write)
            except CollectionCut as cut:  # other trials of the namespace have used the room meanwhile
                raise StreamLost(f"the checkpoint was cut off: {cut}") from cut
            commit = _commit(packed, operation, environment, known)
            await self._volume.checkpoints.keep(key, {"layer": layer, "manifest": manifest}, commit)
            return commit

    async def _restore(self, session: Session, operation: Restore, environment: Environment) -> Record:
        chain = await self.kept(environment.trial)
        if chain[-1].image_id != environment.image_id:
            error = f"the checkpoint was made in the image {chain[-1].image_id}, and this pod has {environment.image_id}"
            return await session.note(operation.id, {"error": error})
        contents = self._volume.checkpoints.contents
        files = (contents(environment.key, commit, name) for commit in chain for name in NAMES)
        return await session.restore(operation.id, [each.digest for each in chain], files)


def _commit(packed: Packed, operation: Checkpoint, environment: Environment, known: Commits) -> Commit:
    """Return the commit of what the runner packed."""
    attempt, step = environment.scope.attempt, operation.step
    base = _base(packed.previous, environment.scope, step, known)
    names = [each.name for each in environment.plan.steps[base[1] + 1 if base else 0 : step + 1]]
    prefixes = tuple(f"{attempt}/{name}/" for name in names)
    received: dict[Name, DownloadResult] = {"manifest": packed.manifest, "layer": packed.layer}
    return Commit(
        attempt=attempt,
        step=step,
        digest=packed.digest,
        files={name: Blob(sha256=each.sha256, size=each.size) for name, each in received.items()},
        entries=packed.entries,
        image_id=environment.image_id,
        base=base,
        records=tuple(each.to_json() for id, each in sorted(environment.records.items()) if id.startswith(prefixes)),
    )


def _base(previous: str, scope: Scope, step: int, known: Commits) -> tuple[int, int] | None:
    """Return the checkpoint on top of which the runner packed; None for the image. Raises StoreError if it is not stored."""
    if not previous:
        return None
    attempts = [*(each.attempt for each in scope.kept), *[scope.attempt] * step]
    for index in range(step - 1, -1, -1):
        found = known.get((attempts[index], index))
        if found is not None and found.digest == previous:
            return found.id
    raise StoreError(f"the checkpoint {previous!r}, on top of which the runner packed, is not stored")


def kept_steps(chain: Sequence[Commit]) -> tuple[KeptStep, ...]:
    """Return the steps that a checkpoint contains, in order. A layer contains all steps since the layer below it."""
    found: list[KeptStep] = []
    for commit in chain:
        own = CheckpointStatus(digest=commit.digest, bytes=commit.bytes, entries=commit.entries)
        within = CheckpointStatus(missing=f"its changes are in the checkpoint after step {commit.step + 1}")
        found += [KeptStep(commit.attempt, within)] * (commit.step - len(found)) + [KeptStep(commit.attempt, own)]
    return tuple(found)


def kept_records(chain: Sequence[Commit]) -> dict[str, Record]:
    """Return the records of the steps that a checkpoint contains, by id."""
    return {each["id"]: Record.from_json(each) for commit in chain for each in commit.records}
