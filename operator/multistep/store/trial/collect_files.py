"""Stores on the volume, within the results limits, the files and records that the operator collects from pods."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from multistep.api.task.task_toml import ArtifactConfig
from multistep.engine.journal.journal import Collected
from multistep.engine.journal.operations import Part
from multistep.engine.journal.results_limits import Amount, Headroom
from multistep.errors import RunnerError, StoreError
from multistep.store.files import known_digests
from multistep.store.files.read_tar import InvalidTar
from multistep.store.files.thread_pool import Spool, as_store_error, close_discarded
from multistep.store.files.trial_key import TrialKey
from multistep.store.trial import directory
from multistep.store.trial.directory import TrialDirectory
from multistep.store.trial.disk_calls import Disk
from multistep.store.trial.listing import picked_chunks
from multistep.store.trial.unpack_download import DownloadFacts, EntryFiles, UnpackedStep, UploadedObject, unpack
from multistep.store.trial.volume_usage import Collection, Counts, DownloadReservation, VolumeUsage, usage_on_disk, write_note
from multistep.token_records import record

_MEMBERS, _POINTERS = "members", "pointers"  # names of hidden files with data about steps (TrialDirectory.store_step_data)


class CollectedStep(Protocol):
    """The attributes of engine.plan.plan.StepPlan that the store needs. ``directory`` is None for a single-step task."""

    @property
    def name(self) -> str: ...
    @property
    def index(self) -> int: ...
    @property
    def directory(self) -> str | None: ...
    @property
    def artifacts(self) -> tuple[ArtifactConfig, ...]: ...


def unpack_step(
    to: TrialDirectory,
    *,
    fd: int,
    attempt: int,
    step: CollectedStep,
    types: Sequence[str],
    part: Part,
    sent: Mapping[str, UploadedObject],
    received: DownloadFacts,
    tokens: int | None = None,
) -> UnpackedStep:
    """Unpack a step's download into the trial's directory. ``fd`` is the descriptor of the file with the download. ``tokens`` is
    that of the token records, which replace a file of the same name that the agent wrote."""
    to.start_attempt(attempt)
    with to.work() as work:
        unpacked = unpack(fd, work, () if part == "verifier" else step.artifacts, types, part, sent, received)
        if tokens is not None:
            unpacked = _with_tokens(unpacked, work / record.PATH, tokens)
        if unpacked.pointers or to.step_data(_POINTERS, attempt):
            pointers = {f"{_prefix(step)}{path}": asdict(uploaded) for path, uploaded in unpacked.pointers.items()}
            to.store_step_data(_POINTERS, attempt, step.index, json.dumps(pointers).encode())
        if part == "agent":
            members = [asdict(files) for files in unpacked.members]
            to.store_step_data(_MEMBERS, attempt, step.index, json.dumps(members).encode())
        if unpacked.digests:
            to.note(known_digests.NOTE, b"".join(unpacked.digests))
        if step.directory is not None and part == "all":
            to.put(work, f"steps/{step.directory}")
        else:
            for path in sorted(work.iterdir()):
                to.put(path, f"{_prefix(step)}{path.name}")
    to.log((f"step {step.name}: {note}" for note in unpacked.notes), time.time())
    write_note(to, Collection(attempt, step.index, part), unpacked.used)
    return unpacked


def _with_tokens(unpacked: UnpackedStep, path: Path, fd: int) -> UnpackedStep:
    """Copy the token records to the path, unless the file with the descriptor ``fd`` is empty. The agent may have replaced the
    directory of the path by a file, too."""
    if not path.parent.is_dir():
        path.parent.unlink()
        path.parent.mkdir()
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    size = os.fstat(fd).st_size
    if size:
        with path.open("xb") as file, open(fd, "rb", closefd=False) as source:
            source.seek(0)
            shutil.copyfileobj(source, file)
    pointers = {name: uploaded for name, uploaded in unpacked.pointers.items() if name != record.PATH}
    return replace(unpacked, pointers=pointers, used=unpacked.used + Amount(size, int(size > 0)))


def uploaded_objects(to: TrialDirectory) -> dict[str, UploadedObject]:
    """Return the files that pods uploaded directly to the object store, by path in the results."""
    current, objects = to.attempt(), dict[str, UploadedObject]()
    for attempt in range(1, current + 1):
        top = "" if attempt == current else f"{directory.ATTEMPTS}/{attempt}/"
        for data in to.step_data(_POINTERS, attempt).values():
            objects |= {f"{top}{path}": UploadedObject(**uploaded) for path, uploaded in json.loads(data).items()}
    return objects


def collected_steps(to: TrialDirectory, attempt: int) -> set[int]:
    """Return the indexes of the steps whose files the attempt collected for a separate verifier."""
    return set(to.step_data(_MEMBERS, attempt))


def _prefix(step: CollectedStep) -> str:
    return "" if step.directory is None else f"steps/{step.directory}/"


def artifact_tar(to: TrialDirectory, attempt: int, step: CollectedStep, entry: int) -> Generator[bytes, None, None]:
    """Return a tar stream of the stored files of the artifact entry with the index ``entry``. Raises StoreError if the step's files
    were not collected."""
    data = to.step_data(_MEMBERS, attempt).get(step.index)
    if data is None:
        raise StoreError(f"the files collected in step {step.name!r} no longer exist")
    return picked_chunks(to.path / f"{_prefix(step)}artifacts", EntryFiles(**json.loads(data)[entry]).names())


_RECORDS = "records"  # name of hidden files (TrialDirectory.store_step_data) with the records of separate verifiers


class Collections:
    """Stores logs, artifacts and records that the operator collects from pods."""

    def __init__(self, disk: Disk, ledger: VolumeUsage) -> None:
        self._disk = disk
        self._ledger = ledger

    @asynccontextmanager
    async def spool(self, key: TrialKey, max_bytes: int | None = None, headroom: Headroom | None = None) -> AsyncIterator[Spool]:
        """Return a context with a temporary file for a download. A write beyond ``max_bytes`` raises StoreError. A write beyond
        ``headroom``, the bytes that the limits still allow, raises CollectionCut."""
        file = await self._disk.threads.run(self._disk.new_file)
        admission = DownloadReservation(self._ledger, key.namespace, headroom)
        try:
            yield Spool(key, file, self._disk.threads, max_bytes, admission.admit)
        except BaseException:
            await self._disk.threads.run(close_discarded, file)
            raise
        else:
            with as_store_error(f"{key}: closing the download"):
                await self._disk.threads.run(file.close)  # in a thread, because the kernel takes long to free a large file's blocks
        finally:
            admission.close()

    async def store_step(
        self,
        key: TrialKey,
        spool: Spool,
        *,
        attempt: int,
        step: CollectedStep,
        types: Sequence[str],
        part: Part = "all",
        sent: Mapping[str, UploadedObject] | None = None,
        received: DownloadFacts | None = None,
        tokens: Spool | None = None,
    ) -> Collected:
        """Unpack a step's logs and artifacts into the trial's directory, in place of an earlier collection of the same part.

        Args:
            part: With a separate verifier, "agent" (with the artifacts) and "verifier" are collected one after the other.
            types: File type of each downloaded source, as the runner reported it, logs first. The result omits the logs' types.
            sent: Objects of the files that the pod uploaded directly to the object store, by the file's name in the download.
            tokens: The token records of a step whose tokens are recorded. It is empty if there are none.

        Raises StoreError if the disk is full, if a later attempt has started, or if other trials leave no room for files that a
        verifier needs (DownloadFacts.alone). Raises RunnerError if the stream is invalid.
        """
        await spool.flush()
        if tokens is not None:
            await tokens.flush()
        unpack = partial(
            unpack_step, fd=spool.fileno(), attempt=attempt, step=step, types=types, part=part, sent=sent or {},
            received=received or DownloadFacts(), tokens=None if tokens is None else tokens.fileno(),
        )  # fmt: skip
        await self._read_usage(key.namespace)
        try:
            unpacked = await self._disk.run(key, f"storing step {step.name!r}", unpack)
        except InvalidTar as error:  # the digest is right, so the runner itself sent an invalid tar
            raise RunnerError(str(error), code="Protocol") from error
        self._ledger.record(key.namespace, f"{key.name}/{key.uid}", Collection(attempt, step.index, part), unpacked.used)
        return unpacked.collected

    async def headroom(self, key: TrialKey, collection: Collection, *, counts: Counts = lambda _: True) -> Headroom:
        """Return how many bytes and files of a collection may be stored under the limits of step, trial and namespace."""
        await self._read_usage(key.namespace)
        return self._ledger.headroom(key.namespace, f"{key.name}/{key.uid}", collection, counts=counts)

    async def most(self, key: TrialKey, collection: Collection, *, counts: Counts = lambda _: True) -> Headroom:
        """Return how many bytes and files of a collection could be stored if the namespace had no other trial."""
        await self._read_usage(key.namespace)
        return self._ledger.alone(key.namespace, f"{key.name}/{key.uid}", collection, counts=counts)

    async def _read_usage(self, namespace: str) -> None:
        if not self._ledger.knows(namespace):
            self._ledger.read(namespace, await self._disk.of_root(lambda: usage_on_disk(self._disk.root / namespace)))

    async def pointers(self, key: TrialKey) -> dict[str, UploadedObject]:
        """Return the files that pods uploaded directly to the object store, by path in the results."""
        return await self._disk.run(key, "reading pointers", uploaded_objects)

    async def collected(self, key: TrialKey, *, attempt: int, step: CollectedStep, entry: int) -> AsyncGenerator[bytes, None]:
        """Yield a tar stream of the files stored for the artifact entry with the index ``entry``."""
        chunks = await self._disk.run(key, "reading artifacts", lambda to: artifact_tar(to, attempt, step, entry))
        async for chunk in self._disk.stream(key, chunks):
            yield chunk

    async def store_records(
        self, key: TrialKey, *, attempt: int, step: CollectedStep, records: Sequence[Mapping[str, Any]]
    ) -> None:
        """Store the records of a separate verifier's runner, before the verifier's pod is deleted. The call is idempotent."""
        data = json.dumps(records).encode()
        await self._disk.run(
            key, f"storing records of step {step.name!r}", lambda to: to.store_step_data(_RECORDS, attempt, step.index, data)
        )

    async def stored(self, key: TrialKey, attempt: int) -> StoredVerifierData:
        """Return the stored data of an attempt's steps with separate verifiers."""
        return await self._disk.run(key, "reading records", lambda to: _stored(to, attempt))


@dataclass(frozen=True)
class StoredVerifierData:
    """The stored data of an attempt's steps with separate verifiers."""

    records: Mapping[int, Sequence[Any]]
    """The records of each verifier that has finished, by step index."""
    collected: frozenset[int]
    """Indexes of the steps whose files were collected for the verifier."""


def _stored(to: TrialDirectory, attempt: int) -> StoredVerifierData:
    records = {step: json.loads(data) for step, data in to.step_data(_RECORDS, attempt).items()}
    return StoredVerifierData(records, frozenset(collected_steps(to, attempt)))
