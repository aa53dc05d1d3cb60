"""Stores and restores checkpoints of a trial's environment, in its exec sessions."""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from multistep.api.trial.runner_records import Record
from multistep.api.trial.status import ANOTHER_TRIAL, CheckpointStatus, ResumeStatus, StepStatus, TrialStatus
from multistep.api.trial.trial import MultiStepTrial
from multistep.engine.journal.operations import Checkpoint, Restore
from multistep.engine.journal.results_limits import Headroom
from multistep.engine.plan.plan import TrialPlan
from multistep.engine.script.choose_checkpoint import chain_of, choose_checkpoint
from multistep.engine.script.operation_scope import KeptStep, Scope
from multistep.errors import CheckpointLost, CollectionCut, RunnerError, StoreError, StreamLost
from multistep.runner_client.checkpoint_requests import (
    CHECKPOINT_PROTOCOL,
    PACK_SECONDS,
    RESTORE_LIMIT_SECONDS,
    VERDICT_PACK_SECONDS,
    CheckpointRequest,
    Packed,
    pack_limit,
)
from multistep.runner_client.session import Session
from multistep.runner_client.transfer_bodies import DownloadResult
from multistep.store.checkpoints.checkpoint_files import (
    ADOPTED,
    CHECKPOINT_FILES,
    BaseCheckpoint,
    CheckpointCommit,
    CheckpointFile,
    StoredFile,
)
from multistep.store.files.trial_key import TrialKey
from multistep.store.results_volume import ResultsVolume

_INTERRUPTED: Final = frozenset({"Conflict", "Body"})  # error codes of the runner after a lost session, which lead to a retry
# Error codes of the runner for which the agent's changes are to blame, because of their size or kind. TooSlow is not one of them,
# because storing is also slow if many trials store checkpoints at the same time.
_BY_AGENT: Final = frozenset({"TooLarge", "Unreadable", "Unusual", "DiskFull", "Running", "Restore"})
_TRIES: Final = 2  # maximum number of tries to pack and store a checkpoint
_VOLUME_SECONDS: Final = 300.0  # time for writes to the results volume, in addition to the runner's timeout
_MAX_CHARACTERS: Final = 500
Commits: TypeAlias = Mapping[tuple[int, int], CheckpointCommit]


@dataclass(frozen=True)
class Environment:
    """The environment whose checkpoint is stored or restored."""

    trial: MultiStepTrial
    scope: Scope
    image_id: str
    """The environment's image, as the kubelet resolved it."""
    protocol: int
    """The runner's protocol version."""
    records: Mapping[str, Record]
    """The trial's records, by id."""
    chain: Sequence[CheckpointCommit]
    """The layers of the checkpoint from which the attempt continues, lowest first."""
    shown: TrialStatus
    """The status to take the steps and their findings of tampering from."""
    session: Callable[[], Session]
    """Returns the open exec session."""
    reopen: Callable[[], Awaitable[object]]
    """Replaces a session in which the transfer of a body was interrupted."""

    @property
    def key(self) -> TrialKey:
        """Return the key of the trial's results."""
        return TrialKey.of(self.trial)


class Checkpointing:
    """Performs the operations Checkpoint and Restore."""

    def __init__(self, volume: ResultsVolume) -> None:
        self._volume = volume

    async def chain(self, trial: MultiStepTrial) -> tuple[CheckpointCommit, ...]:
        """Return the layers of the checkpoint from which the trial's attempt continues, lowest first; () if it started at step 1.

        This reads only the layers' commits, which are metadata and contain the records of the steps before the checkpoint. The
        layers' files may be missing. Raises CheckpointLost if the stored checkpoint is not the one that the status names.
        """
        resumed = trial.status.resumed
        if resumed is None:
            return ()
        top = (resumed.attempts[-1], len(resumed.attempts) - 1)
        stored = await self._volume.checkpoints.lineage(TrialKey.of(trial), top)
        return tuple(stored.commits[id] for id in chain_of(top, resumed.digest, stored.commits, stored.damaged))

    async def last(self, trial: MultiStepTrial, failed: TrialStatus, plan: TrialPlan) -> tuple[ResumeStatus | None, Sequence[str]]:
        """Return the checkpoint from which the next attempt continues, and why later checkpoints are not used.

        The checkpoint is None if the attempt starts at step 1. ``failed`` is the status with the attempt that has just failed.
        """
        if plan.checkpoints is None and not plan.branch.kept:
            return None, ()
        stored = await self._volume.checkpoints.stored(TrialKey.of(trial))
        complete = {id: each for id, each in stored.commits.items() if each.complete}
        chosen = choose_checkpoint(failed, plan, complete, stored.damaged)
        if not chosen.chain:
            return None, chosen.refused
        return resume_status([stored.commits[id] for id in chosen.chain], plan), chosen.refused

    async def perform(self, operation: Checkpoint | Restore, environment: Environment) -> Record:
        """Perform an operation and return its record. Idempotent.

        If the operation is not possible, its record contains the reason, which is ``missing`` for a Checkpoint and ``error`` for a
        Restore (engine.script.checkpoint_operations). A failed checkpoint ends the attempt only if the step's verifier needs it.
        """
        if environment.protocol < CHECKPOINT_PROTOCOL:
            problem = "error" if isinstance(operation, Restore) else "missing"
            old = "the runner is of a release without checkpoints"
            return await environment.session().note(operation.id, {problem: old, "byAgent": False})
        if isinstance(operation, Restore):
            return await self._restore(operation, environment)
        return await environment.session().note(operation.id, await self._store(operation, environment))

    async def forget(self, key: TrialKey) -> None:
        """Delete a trial's checkpoints, once nothing needs them any more. Idempotent."""
        await self._volume.checkpoints.remove(key)

    async def discard_temporary(self, key: TrialKey, id: tuple[int, int]) -> None:
        """Delete a checkpoint that was needed only for a second verdict of its step. Idempotent."""
        await self._volume.checkpoints.discard(key, id)

    async def _store(self, operation: Checkpoint, environment: Environment) -> Mapping[str, Any]:
        """Store the step's changes, and let the runner use them as the base of the next checkpoint. Idempotent.

        Raises StoreError if a checkpoint that the step's verifier needs cannot be stored, so that the trial waits and retries. If
        space is missing, the files of the trial's own checkpoints are deleted before. Otherwise trials could wait for each other
        forever.
        """
        why = ""
        for _ in range(_TRIES):
            try:
                return _facts(await self._stored(operation, environment))
            except RunnerError as error:
                return {"missing": _refusal(environment, error), "byAgent": error.code in _BY_AGENT}
            except (StoreError, CollectionCut) as error:
                why = str(error)[:_MAX_CHARACTERS]
                await _reopen(environment)
                if _must_wait(operation) and _lacks_room(error):
                    await self._volume.checkpoints.give_up(environment.key)
        if _must_wait(operation):
            raise StoreError(why)
        return {"missing": why, "byAgent": False}

    async def _completed(self, operation: Checkpoint, commit: CheckpointCommit, environment: Environment) -> CheckpointCommit:
        """Add the steps' records to a checkpoint that was stored early, because the step's verifier needed it."""
        records = _records(environment, commit.step, commit.base)
        update = {"complete": True, "final": operation.final, "records": records, **_shown(environment, commit.step, commit.base)}
        complete = commit.model_copy(update=update)
        return await self._volume.checkpoints.complete(environment.key, complete)

    async def _stored(self, operation: Checkpoint, environment: Environment) -> CheckpointCommit:
        scope, checkpoints = environment.scope, self._volume.checkpoints
        stored = await checkpoints.stored(environment.key)
        known = stored.commits
        commit = known.get((scope.attempt, operation.step))
        if commit is None:
            headroom = await checkpoints.headroom(environment.key, scope.attempt, operation.step)
            # If a verifier needs the checkpoint, the trial waits until other trials free space. But if the checkpoint would not fit
            # even without checkpoints of other trials, the agent is to blame.
            waits, most = _must_wait(operation), headroom.bytes
            if waits:
                most = await checkpoints.most(environment.key, scope.attempt, operation.step)
            if headroom.bytes < 1 and (most > 0 or not waits):
                raise _NoRoom(f"the checkpoints of the {headroom.bytes_of} have reached their limit")
            try:
                commit = await self._pack(
                    operation, environment, known, headroom, most, include_earlier=not known and bool(stored.damaged)
                )
            except RunnerError as error:
                if error.code == "TooLarge" and known and most < operation.max_bytes and waits:
                    raise _NoRoom(f"the trial's earlier checkpoints leave no room: {_refusal(environment, error)}") from error
                raise
        elif operation.complete and not commit.complete:
            commit = await self._completed(operation, commit, environment)
        if operation.temporary:
            return commit
        try:
            await environment.session().operate("commit", {"id": f"{operation.id}-commit", "manifest": commit.manifest})
        except RunnerError as error:
            _refusal(environment, error)  # the trial goes on, because the runner then bases its next checkpoint on an earlier one
        return commit

    async def _pack(
        self,
        operation: Checkpoint,
        environment: Environment,
        known: Commits,
        headroom: Headroom,
        most: int,
        *,
        include_earlier: bool,
    ) -> CheckpointCommit:
        """Pack and store a checkpoint of at most ``most`` bytes.

        ``include_earlier`` means that it also contains the changes of earlier steps whose checkpoints were lost. The operation's
        maximum size then applies per step.
        """
        max_bytes, full = operation.max_bytes * (operation.step + 1 if include_earlier else 1), operation.alone or include_earlier
        packed_bytes, seconds = max(1, min(max_bytes, most)), _pack_seconds(operation)
        request = CheckpointRequest(operation.exclude, max_bytes, packed_bytes, full=full, max_seconds=seconds)
        async with self._volume.checkpoints.draft(environment.key, headroom) as draft:
            packed = await environment.session().checkpoint(request, draft.spools["layer"].write, draft.spools["manifest"].write)
            base = _base(packed.previous, environment.scope, operation.step, known)
            if base is not None or not packed.previous:
                commit = _commit(packed, operation, environment, base)
                return await self._volume.checkpoints.store(environment.key, draft, commit)
        if full:
            raise StoreError("the runner packed on top of another checkpoint, although it was to pack all changes since the image")
        # The runner packed only the changes since a checkpoint that is no longer stored. Pack all changes.
        return await self._pack(operation, environment, known, headroom, most, include_earlier=True)

    async def _restore(self, operation: Restore, environment: Environment) -> Record:
        """Restore a checkpoint, and return the record of the operation.

        The agent is to blame for a failure only if the runner rejects files that are unchanged in the store.
        """
        chain, contents, by_agent = environment.chain, self._volume.checkpoints.contents, False
        if operation.step is not None:
            try:
                chain = await self._chain_of_step(environment, operation.step)
            except CheckpointLost as error:
                return await environment.session().note(operation.id, {"error": str(error), "byAgent": False})
        files = (contents(environment.key, commit, name) for commit in chain for name in CHECKPOINT_FILES)
        why = f"it was made in the image {chain[-1].image_id}, and this pod has {environment.image_id}"
        if chain[-1].image_id == environment.image_id:
            try:
                return await environment.session().restore(operation.id, [each.manifest for each in chain], files, operation.paths)
            except RunnerError as error:
                why, by_agent = _refusal(environment, error), error.code in _BY_AGENT
            except StoreError as error:
                if not isinstance(error.__cause__, FileNotFoundError):
                    raise
                why = str(error)[:_MAX_CHARACTERS]
                await _reopen(environment)
        return await environment.session().note(operation.id, {"error": why, "byAgent": by_agent})

    async def _chain_of_step(self, environment: Environment, step: int) -> Sequence[CheckpointCommit]:
        """Return the layers of the current attempt's checkpoint after a step. Raises CheckpointLost if a layer is missing.

        In a regrade, this is the regrade's copy of the source trial's checkpoint.
        """
        stored = await self._volume.checkpoints.stored(environment.key)
        attempt = environment.scope.attempt if environment.scope.source is None else ADOPTED
        ids = chain_of((attempt, step), None, stored.commits, stored.damaged)
        return [stored.commits[id] for id in ids]


def _must_wait(operation: Checkpoint) -> bool:
    """Return whether the trial waits until the checkpoint can be stored, because the step gets no verdict without it."""
    return not operation.complete and not operation.temporary


class _NoRoom(StoreError):
    """The limits of checkpoints leave no space for a new one."""


def _lacks_room(error: Exception) -> bool:
    cause = error.__cause__
    full = isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT)
    return full or isinstance(error, _NoRoom | CollectionCut)


def limit_seconds(operation: Checkpoint | Restore) -> float:
    """Return the timeout of an operation in seconds, including all its tries."""
    limit = RESTORE_LIMIT_SECONDS if isinstance(operation, Restore) else _TRIES * pack_limit(_pack_seconds(operation))
    return limit + _VOLUME_SECONDS


def _pack_seconds(operation: Checkpoint) -> float:
    return VERDICT_PACK_SECONDS if _must_wait(operation) else PACK_SECONDS


def _facts(commit: CheckpointCommit) -> Mapping[str, Any]:
    found = {"digest": commit.digest, "bytes": commit.bytes, "entries": commit.entries}
    return {**found, "processes": commit.processes, "sharedMemory": commit.shared_memory}


async def _reopen(environment: Environment) -> None:
    """Replace the exec session if a body was not received or sent completely."""
    if not environment.session().usable:
        await environment.reopen()


def _refusal(environment: Environment, error: RunnerError) -> str:
    """Return the text of an error with which the runner refused a request.

    Raises the error if the session cannot be used any more, and StreamLost if the request must be retried.
    """
    if not environment.session().usable:
        raise error
    if error.code in _INTERRUPTED:
        raise StreamLost(str(error)) from error
    return f"{error.code}: {str(error)[:_MAX_CHARACTERS]}"


def _commit(packed: Packed, operation: Checkpoint, environment: Environment, base: BaseCheckpoint | None) -> CheckpointCommit:
    """Return the commit, which is the metadata, of the checkpoint that the runner packed on top of ``base``."""
    scope, step = environment.scope, operation.step
    received: dict[CheckpointFile, DownloadResult] = {"manifest": packed.manifest, "layer": packed.layer}
    return CheckpointCommit(
        attempt=scope.attempt,
        step=step,
        manifest=packed.digest,
        files={name: StoredFile(sha256=each.sha256, size=each.size) for name, each in received.items()},
        entries=packed.entries,
        image_id=environment.image_id,
        base=base,
        attempts=tuple(_ran(scope, step, base).values()),
        records=_records(environment, step, base) if operation.complete else (),
        **(_shown(environment, step, base) if operation.complete else {}),
        complete=operation.complete,
        final=operation.final,
        processes=packed.processes,
        shared_memory=packed.shared_memory,
    )


def _ran(scope: Scope, step: int, base: BaseCheckpoint | None) -> Mapping[str, int]:
    """Return, by name, the number of the attempt that ran each step after the base checkpoint."""
    first = 0 if base is None else base.step + 1
    return {each.name: _attempt_of(scope, each.index) for each in scope.plan.steps[first : step + 1]}


def _records(environment: Environment, step: int, base: BaseCheckpoint | None) -> tuple[dict[str, Any], ...]:
    """Return the runners' records of the steps after the base checkpoint."""
    prefixes = tuple(f"{attempt}/{name}/" for name, attempt in _ran(environment.scope, step, base).items())
    return tuple(each.to_json() for id, each in sorted(environment.records.items()) if id.startswith(prefixes))


def _shown(environment: Environment, step: int, base: BaseCheckpoint | None) -> dict[str, Any]:
    """Return the steps after the base checkpoint and their findings of tampering, from the status."""
    steps, ran = environment.shown.steps, _ran(environment.scope, step, base)
    found = [each for each in environment.shown.tampering if each.step in ran]
    return {"steps": tuple(steps[step + 1 - len(ran) : step + 1]), "tampering": tuple(found)}


def _base(previous: str, scope: Scope, step: int, known: Commits) -> BaseCheckpoint | None:
    """Return the checkpoint on top of which the runner packed, None if that is the image or a checkpoint that is not stored."""
    ids = [(_attempt_of(scope, index), index) for index in range(step - 1, -1, -1)]
    found = next((known[id] for id in ids if id in known and known[id].manifest == previous), None)
    return None if found is None else BaseCheckpoint(attempt=found.attempt, step=found.step, digest=found.digest)


def _attempt_of(scope: Scope, index: int) -> int:
    """Return the number of the attempt that ran a step."""
    return scope.kept[index].attempt if index < len(scope.kept) else scope.attempt


def resume_status(chain: Sequence[CheckpointCommit], plan: TrialPlan) -> ResumeStatus:
    """Return the status of an attempt that continues from a checkpoint."""
    attempts = [attempt for commit in chain for attempt in commit.attempts]
    return ResumeStatus(after=plan.steps[chain[-1].step].name, attempts=attempts, digest=chain[-1].digest)


def kept_steps(chain: Sequence[CheckpointCommit]) -> tuple[KeptStep, ...]:
    """Return the steps that a checkpoint contains, in order. A layer contains all steps since the layer below it."""
    found: list[KeptStep] = []
    for commit in chain:
        within = CheckpointStatus(missing=f"its changes are in the checkpoint after step {commit.step + 1}")
        checkpoints = [*[within] * (len(commit.attempts) - 1), _status(commit)]
        for index, (attempt, checkpoint) in enumerate(zip(commit.attempts, checkpoints, strict=True)):
            found.append(KeptStep(attempt, checkpoint, _reported(commit.steps[index]) if attempt == ANOTHER_TRIAL else None))
    return tuple(found)


def _reported(step: StepStatus) -> StepStatus:
    """Return a step that another trial ran, without its usage and artifacts, which belong to that trial."""
    return step.model_copy(update={"usage": None, "artifacts": None})


def _status(commit: CheckpointCommit) -> CheckpointStatus:
    return CheckpointStatus(
        digest=commit.digest,
        bytes=commit.bytes,
        entries=commit.entries,
        processes=commit.processes or None,
        shared_memory=commit.shared_memory or None,
    )


def kept_records(chain: Sequence[CheckpointCommit]) -> dict[str, Record]:
    """Return the records of the steps that a checkpoint contains, by id."""
    return {each["id"]: Record.from_json(each) for commit in chain for each in commit.records}
