"""The results of trials on the operator's volume: ``root/NAMESPACE/NAME/UID/`` is Harbor's trial directory.

Every call is idempotent, so that it can be repeated after a crash. Blocking calls run in the volume's small thread pool.
"""

from __future__ import annotations

import hmac
import json
import os
import tempfile
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from multistep.engine.journal import Collected
from multistep.engine.operations import Part
from multistep.engine.room import Limits, Room
from multistep.errors import StoreError
from multistep.store import directory, steps
from multistep.store import listing as reading
from multistep.store.access import KEY_FILE, load_or_make_key, token
from multistep.store.archive import tar_chunks
from multistep.store.directory import TrialDirectory
from multistep.store.keep import Pointer, Received
from multistep.store.key import TrialKey as TrialKey
from multistep.store.ledger import Admission, Collection, Ledger, no_limits, usage_on_disk
from multistep.store.listing import Found as Found
from multistep.store.redact import Redactor
from multistep.store.spool import Spool as Spool
from multistep.store.steps import Step as Step
from multistep.store.threads import Threads, as_store_error

T = TypeVar("T")

_RECORDS = "records"  # name of the internal data that has separate verifiers' records


class Volume:
    """Results below root. unpack_threads: size of the thread pool. Raises StoreError if root is unusable.

    limits: returns the results limits for a volume's size in bytes.
    check: called, in any thread, before each visible change; raises if this process may not write.
    """

    def __init__(
        self,
        root: Path,
        unpack_threads: int = 2,
        *,
        check: Callable[[], None] = lambda: None,
        limits: Callable[[int], Limits] = no_limits,
    ) -> None:
        self.root = root
        self._check = check
        self._threads = Threads(unpack_threads)
        self._check_thread = Threads(1)  # the readiness check must not be queued behind unpacking
        with as_store_error(f"results directory {root}"):
            directory.make(root)
            self._key = load_or_make_key(root / KEY_FILE)
            info = os.statvfs(root)
        self._ledger = Ledger(limits(info.f_blocks * info.f_frsize))

    def close(self) -> None:
        """Accept no more calls."""
        self._threads.close()
        self._check_thread.close()

    @asynccontextmanager
    async def spool(self, key: TrialKey, max_bytes: int | None = None, room: Room | None = None) -> AsyncIterator[Spool]:
        """Create a spool for a download. Its write raises StoreError beyond max_bytes, CollectionCut beyond room."""
        file = await self._threads.run(self._new_file)
        admission = Admission(self._ledger, key.namespace, room)
        try:
            yield Spool(key, file, self._threads, max_bytes, admission.admit)
        finally:
            admission.close()
            await self._threads.run(file.close)  # frees the blocks, which is slow for a large file

    def _new_file(self) -> BinaryIO:
        with as_store_error(f"results directory {self.root}"):
            return tempfile.TemporaryFile(dir=self.root, prefix=directory.SPOOL)

    async def keep_step(
        self,
        key: TrialKey,
        spool: Spool,
        *,
        attempt: int,
        step: Step,
        types: Sequence[str],
        part: Part = "all",
        sent: Mapping[str, Pointer] | None = None,
        received: Received | None = None,
    ) -> Collected:
        """Unpack a step's logs and artifacts into their place; replace an earlier collection of the same step and part.

        part: with a separate verifier, "agent" (with the artifacts) and "verifier" are collected one after the other.
        types: of all sources of the download, logs first, as the runner reported; Collected has only the artifact entries'.
        sent: files that the pod uploaded directly to the object store, by name in the download.
        Raises StoreError if the stream is invalid, the disk is full, or a later attempt has started.
        """
        await spool.flush()
        keep = partial(
            steps.keep_step, fd=spool.fileno(), attempt=attempt, step=step, types=types, part=part, sent=sent or {},
            received=received or Received(),
        )  # fmt: skip
        await self._read_usage(key.namespace)
        kept = await self._run(key, f"storing step {step.name!r}", keep)
        self._ledger.take(key.namespace, f"{key.name}/{key.uid}", Collection(attempt, step.index, part), kept.used)
        return kept.collected

    async def room(self, key: TrialKey, *, attempt: int, step: Step, part: Part) -> Room:
        """Return the room for a collection, by the limits of step, trial and namespace."""
        await self._read_usage(key.namespace)
        return self._ledger.room(key.namespace, f"{key.name}/{key.uid}", Collection(attempt, step.index, part))

    async def _read_usage(self, namespace: str) -> None:
        if not self._ledger.knows(namespace):
            self._ledger.read(namespace, await self._of_root(lambda: usage_on_disk(self.root / namespace)))

    async def pointers(self, key: TrialKey) -> dict[str, Pointer]:
        """Return the files that pods uploaded directly to the object store, by path in the results."""
        return await self._run(key, "reading pointers", steps.pointers)

    async def collected(self, key: TrialKey, *, attempt: int, step: Step, entry: int) -> AsyncGenerator[bytes, None]:
        """Yield one retained artifact entry of part "agent" as a tar stream: a directory's contents, or one file."""
        chunks = await self._run(key, "reading artifacts", lambda to: steps.picked(to, attempt, step, entry))
        async for chunk in self._stream(key, chunks):
            yield chunk

    async def keep_records(self, key: TrialKey, *, attempt: int, step: Step, records: Sequence[Mapping[str, Any]]) -> None:
        """Store a verifier's records before its pod is deleted. Idempotent."""
        data = json.dumps(records).encode()
        await self._run(key, f"storing records of step {step.name!r}", lambda to: to.keep(_RECORDS, attempt, step.index, data))

    async def records(self, key: TrialKey, attempt: int) -> list[Any]:
        """Return all stored records of an attempt."""
        kept = await self._run(key, "reading records", lambda to: to.kept(_RECORDS, attempt))
        return [record for data in kept.values() for record in json.loads(data)]

    async def start_attempt(self, key: TrialKey, attempt: int) -> None:
        """Move an earlier attempt's results to ``attempts/N/``. Idempotent. Raises StoreError if a later attempt has started."""
        await self._run(key, f"starting attempt {attempt}", lambda to: to.start_attempt(attempt))

    async def finish(self, key: TrialKey, files: Mapping[str, bytes], directories: Iterable[str] = ()) -> None:
        """Write result.json and the trial's other files (store.harbor.files), then flush everything to the disk.

        directories: to create if missing (store.harbor.directories). Lines appended to trial.log are kept.
        """
        await self._run(key, "writing results", lambda to: to.finish(files, directories))

    async def append_log(self, key: TrialKey, line: str) -> None:
        """Append a line with the time to trial.log, unless it has the same text already."""
        await self._run(key, "writing trial.log", lambda to: to.log([line], time.time()))

    async def redact(self, key: TrialKey, secrets: Iterable[str]) -> None:
        """Replace secrets in all UTF-8 text files of the trial by [REDACTED] (Harbor 0.25, end of a trial)."""
        redactor = Redactor(secrets)
        if redactor and await self.exists(key):
            await self._run(key, "redacting", lambda to: _redact(to, redactor))

    async def remove(self, key: TrialKey) -> None:
        """Delete a trial's results, if they exist."""
        await self._run(key, "deleting", lambda to: _remove(to, self.root))
        self._ledger.free(key.namespace, f"{key.name}/{key.uid}")

    async def mark_gone(self, key: TrialKey, now: float) -> None:
        """Mark the trial as deleted since ``now``, and delete temporary files that a crash left."""
        await self._run(key, "marking", lambda to: to.mark_gone(now))

    async def unmark(self, key: TrialKey) -> None:
        """Delete the mark: the trial exists."""
        await self._run(key, "unmarking", lambda to: to.unmark())

    async def exists(self, key: TrialKey) -> bool:
        """Return whether results of this trial exist."""
        return await self._run(key, "checking", lambda to: to.path.is_dir())

    async def trials(self) -> dict[TrialKey, float | None]:
        """Return every trial with results, and since when it is marked as deleted (seconds since the epoch)."""
        return await self._of_root(lambda: dict(self._trials()))

    def _trials(self) -> Iterator[tuple[TrialKey, float | None]]:
        for path in self.root.glob("*/*/*"):
            try:
                key = TrialKey(*path.relative_to(self.root).parts)
            except StoreError:
                continue  # lost+found and the like
            if path.is_dir():
                yield key, TrialDirectory(path).gone_since()

    async def try_to_write(self) -> None:
        """Raise StoreError if no file can be created. A full volume passes: its results can still be read and deleted."""

        def make() -> None:
            with as_store_error(f"results directory {self.root}"), tempfile.TemporaryFile(dir=self.root):
                pass

        await self._check_thread.run(make)

    async def tidy(self, before: float) -> int:
        """Delete temporary files at the top that crashes before a time (seconds since the epoch) left; return their number."""
        return await self._of_root(lambda: directory.tidy(self.root, before))

    async def free_bytes(self) -> int:
        """Return the free bytes on the volume."""
        info = await self._of_root(lambda: os.statvfs(self.root))
        return info.f_bavail * info.f_frsize

    async def _of_root(self, function: Callable[[], T]) -> T:
        with as_store_error(f"results directory {self.root}"):
            return await self._threads.run(function)

    async def archive(self, key: TrialKey) -> AsyncGenerator[bytes, None]:
        """Yield the trial directory as a tar stream (PAX, uncompressed), in chunks of about 256 KiB. StoreError if missing."""
        async for chunk in self._stream(key, tar_chunks(self._path(key))):
            yield chunk

    async def listing(self, key: TrialKey) -> AsyncGenerator[list[Found], None]:
        """Yield all entries of a trial's results in batches, in the order of the archive."""
        batches = reading.batches(self._path(key))
        try:
            while batch := await self._run(key, "listing results", lambda _: next(batches, [])):
                yield batch
        finally:
            await self._threads.run(batches.close)

    async def contents(self, key: TrialKey, path: str) -> AsyncGenerator[bytes, None]:
        """Yield one file of the results in chunks."""
        async with aclosing(self._stream(key, reading.contents(self._path(key), path))) as chunks:
            async for chunk in chunks:
                yield chunk

    async def note(self, key: TrialKey, name: str, data: bytes) -> None:
        """Append to a hidden file of the trial, which is deleted with it."""
        await self._run(key, "writing notes", lambda to: to.note(name, data))

    async def notes(self, key: TrialKey, name: str) -> bytes:
        """Return the contents of a hidden file; b"" if it does not exist."""
        return await self._run(key, "reading notes", lambda to: to.notes(name))

    async def part(self, key: TrialKey, path: str, *, offset: int, limit: int) -> bytes | None:
        """Return at most limit bytes of one file; None if it does not exist. A negative offset counts from the end."""
        return await self._run(key, "reading a file", lambda to: reading.part(to.path, path, offset, limit))

    async def _stream(self, key: TrialKey, chunks: Generator[bytes, None, None]) -> AsyncGenerator[bytes, None]:
        try:
            while chunk := await self._run(key, "reading results", lambda _: next(chunks, b"")):
                yield chunk
        finally:
            await self._threads.run(chunks.close)

    def access(self, key: TrialKey) -> str:
        """Return the token that gives access to these results: 32 hexadecimal characters."""
        return token(self._key, str(key))

    def grants(self, key: TrialKey, shown: str) -> bool:
        """Return whether this is the token; compares in constant time."""
        return hmac.compare_digest(self.access(key).encode(), shown.encode(errors="replace"))

    def uri(self, base: str, key: TrialKey) -> str:
        """Return the address of the results. base: URL of the operator's HTTP server."""
        return f"{base.rstrip('/')}/results/{key}/{self.access(key)}"

    def _path(self, key: TrialKey) -> Path:
        return self.root / key.namespace / key.name / key.uid

    async def _run(self, key: TrialKey, what: str, function: Callable[[TrialDirectory], T]) -> T:
        with as_store_error(f"{key}: {what}"):
            return await self._threads.run(function, TrialDirectory(self._path(key), self._check))


def _redact(to: TrialDirectory, redactor: Redactor) -> None:
    to.check()
    redactor.tree(to.path)


def _remove(to: TrialDirectory, root: Path) -> None:
    to.check()
    directory.remove(to.path, root)
