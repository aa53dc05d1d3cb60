"""Stores the checkpoints of all trials on the volume, within limits that are separate from those of the results."""

from __future__ import annotations

import shutil
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from multistep.engine.journal.results_limits import Amount, Headroom, ResultsLimits
from multistep.errors import CheckpointLost, StoreError
from multistep.store.checkpoints import checkpoint_files
from multistep.store.checkpoints.checkpoint_files import CHECKPOINT_FILES, CheckpointCommit, CheckpointFile, StoredCheckpoints
from multistep.store.files.thread_pool import Spool, close_discarded
from multistep.store.files.trial_key import TrialKey
from multistep.store.trial.disk_calls import Disk
from multistep.store.trial.volume_usage import Collection, DownloadReservation, VolumeUsage

_MANIFEST_BYTES: Final = 1 << 30  # maximum size of a manifest, which has at most 500,000 entries


@dataclass(frozen=True)
class CheckpointDraft:
    """A checkpoint that the operator receives."""

    path: Path
    """The checkpoint's temporary directory."""
    spools: Mapping[CheckpointFile, Spool]


class Checkpoints:
    """The checkpoints of all trials. Their size does not count towards the limits of the results."""

    def __init__(self, disk: Disk, limits: ResultsLimits) -> None:
        self._disk = disk
        self._ledger = VolumeUsage(limits)

    def close(self) -> None:
        """Reject further calls. Calls that run still finish."""
        self._disk.close()

    async def most(self, key: TrialKey, attempt: int, step: int) -> int:
        """Return the maximum size of a checkpoint in bytes if no other trial had checkpoints."""
        await self._read_usage(key.namespace)
        return self._ledger.alone(key.namespace, _trial(key), Collection(attempt, step, "all")).bytes

    async def headroom(self, key: TrialKey, attempt: int, step: int) -> Headroom:
        """Return how many bytes a checkpoint may have now under the limits of trial and namespace."""
        await self._read_usage(key.namespace)
        return self._ledger.headroom(key.namespace, _trial(key), Collection(attempt, step, "all"))

    @asynccontextmanager
    async def draft(self, key: TrialKey, headroom: Headroom) -> AsyncIterator[CheckpointDraft]:
        """Return a context with temporary files for a checkpoint. A write beyond ``headroom``, the bytes that the limits still
        allow, raises CollectionCut."""
        path = await self._disk.run(key, "creating a checkpoint", checkpoint_files.make_draft)
        admission = DownloadReservation(self._ledger, key.namespace, replace(headroom, files=0))
        try:
            async with AsyncExitStack() as stack:
                spools: dict[CheckpointFile, Spool] = {}
                for name in CHECKPOINT_FILES:
                    file = await self._disk.threads.run(checkpoint_files.create, path / name)
                    stack.push_async_callback(self._disk.threads.run, close_discarded, file)
                    limit = _MANIFEST_BYTES if name == "manifest" else None
                    spools[name] = Spool(key, file, self._disk.threads, limit, admission.admit)
                yield CheckpointDraft(path, spools)
        finally:
            admission.close()
            await self._disk.threads.run(shutil.rmtree, path, True)

    async def store(self, key: TrialKey, draft: CheckpointDraft, commit: CheckpointCommit) -> CheckpointCommit:
        """Store a checkpoint, and return its commit with the digest. If the trial already has this checkpoint, keep the stored one
        and return its commit."""
        for spool in draft.spools.values():
            await spool.flush()
        stored = await self._disk.run(
            key, f"storing the checkpoint after step {commit.step + 1}", lambda to: checkpoint_files.publish(to, draft.path, commit)
        )
        await self._count(key, [stored])
        return stored

    async def adopt(self, key: TrialKey, source: TrialKey, chain: Sequence[CheckpointCommit]) -> Sequence[CheckpointCommit]:
        """Copy the layers of another trial's checkpoint, lowest first, and return the copies, which have attempt 0. The call is
        idempotent.

        Raises StoreError if the copies would exceed the limits of the trial or its namespace, and CheckpointLost if a file is
        missing because the source trial was deleted.
        """
        await self._read_usage(key.namespace)
        copied = [Collection(checkpoint_files.ADOPTED, layer.step, "all") for layer in reversed(chain)]
        headroom = self._ledger.headroom(key.namespace, _trial(key), *copied)
        if (size := sum(layer.bytes for layer in chain)) > headroom.bytes:
            left = f"the limit of the {headroom.bytes_of}'s checkpoints leaves {headroom.bytes}"
            raise StoreError(f"the checkpoints of trial {source.name} have {size} bytes; {left}")
        path = self._disk.path(source)
        try:
            copies = await self._disk.run(key, "copying checkpoints", lambda to: checkpoint_files.adopt(to, path, chain))
        except StoreError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                raise CheckpointLost(f"a checkpoint of trial {source.name} was deleted") from error
            raise
        await self._count(key, copies)
        return copies

    async def complete(self, key: TrialKey, commit: CheckpointCommit) -> CheckpointCommit:
        """Replace the commit of a stored checkpoint by the complete commit, and return the complete commit with its digest."""
        return await self._disk.run(key, "completing a checkpoint", lambda to: checkpoint_files.complete(to, commit))

    async def stored(self, key: TrialKey) -> StoredCheckpoints:
        """Return the trial's checkpoints. Raises StoreError if the volume cannot be read."""
        return await self._disk.run(key, "reading checkpoints", lambda to: checkpoint_files.stored(to.path / checkpoint_files.TOP))

    async def lineage(self, key: TrialKey, id: tuple[int, int]) -> StoredCheckpoints:
        """Return the commits of a checkpoint and of all checkpoints below it, even if layers are missing. Raises StoreError."""
        return await self._disk.run(
            key, "reading checkpoints", lambda to: checkpoint_files.lineage(to.path / checkpoint_files.TOP, id)
        )

    async def contents(self, key: TrialKey, commit: CheckpointCommit, name: CheckpointFile) -> AsyncGenerator[bytes, None]:
        """Yield the contents of a checkpoint's file in chunks."""
        async for chunk in self._disk.stream(
            key, checkpoint_files.chunks(self._disk.path(key) / checkpoint_files.path_of(commit.id) / name)
        ):
            yield chunk

    async def retain(self, key: TrialKey) -> None:
        """Keep the checkpoints of a finished trial for as long as its results, even if the trial is deleted. The call is
        idempotent."""
        await self._disk.run(key, "keeping checkpoints", checkpoint_files.retain)

    async def give_up(self, key: TrialKey) -> None:
        """Delete layers and manifests of a trial's checkpoints to free their space. The commits stay, so that an attempt that
        resumed from a checkpoint can continue. A later attempt starts at step 1. The call is idempotent."""
        await self._read_usage(key.namespace)
        await self._disk.run(key, "giving up checkpoints", checkpoint_files.give_up)
        self._ledger.free(key.namespace, _trial(key))

    async def discard(self, key: TrialKey, id: tuple[int, int]) -> None:
        """Delete one of a trial's checkpoints unless it is complete. The call is idempotent."""
        await self._read_usage(key.namespace)
        if await self._disk.run(key, "deleting a checkpoint", lambda to: checkpoint_files.discard(to, id)):
            self._ledger.record(key.namespace, _trial(key), Collection(*id, "all"), Amount())

    async def remove(self, key: TrialKey, *, unless_kept: bool = False) -> None:
        """Delete all checkpoints of a trial. With ``unless_kept``, do nothing if ``retain`` marked them. The call is idempotent."""
        await self._read_usage(key.namespace)
        if await self._disk.run(key, "deleting checkpoints", lambda to: checkpoint_files.remove(to, unless_kept=unless_kept)):
            self._ledger.free(key.namespace, _trial(key))

    def forget(self, key: TrialKey) -> None:
        """Stop counting the checkpoints of a trial whose directory was deleted."""
        self._ledger.free(key.namespace, _trial(key))

    async def _count(self, key: TrialKey, kept: Sequence[CheckpointCommit]) -> None:
        await self._read_usage(key.namespace)
        for commit in kept:
            used = Amount(commit.bytes, len(commit.files))
            self._ledger.record(key.namespace, _trial(key), Collection(commit.attempt, commit.step, "all"), used)

    async def _read_usage(self, namespace: str) -> None:
        if not self._ledger.knows(namespace):
            self._ledger.read(namespace, await self._disk.of_root(lambda: checkpoint_files.usage(self._disk.root / namespace)))


def _trial(key: TrialKey) -> str:
    return f"{key.name}/{key.uid}"
