"""The results of trials on a directory of the operator's: ``root/NAMESPACE/NAME/UID/`` is Harbor's trial directory.

Every call may be repeated after a crash, with the same result. Whatever blocks runs in this volume's few threads.
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

from ..engine.journal import Collected
from ..engine.operations import Part
from ..engine.room import Limits, Room
from ..errors import StoreError
from . import directory, reading, steps
from .access import KEY_FILE, load_or_make_key, token
from .archive import tar_chunks
from .directory import TrialDirectory
from .keep import Pointer, Received
from .key import TrialKey as TrialKey
from .ledger import Admission, Collection, Ledger, no_limits, usage_on_disk
from .reading import Found as Found
from .redact import Redactor
from .spool import Spool as Spool
from .steps import Step as Step
from .threads import Threads, as_store_error

T = TypeVar("T")

_RECORDS = "records"  # what is kept of separate verifiers beside their results


class Volume:
    """Results below root. unpack_threads: the most threads used. Raises StoreError when root cannot be used.

    limits: of what is kept, by the volume's size in bytes.
    check: called, in whatever thread, before each change that can be seen; raises if this process may not make it.
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
        self._check_thread = Threads(1)  # the readiness check must not queue behind unpacking
        with as_store_error(f"results directory {root}"):
            directory.make(root)
            self._key = load_or_make_key(root / KEY_FILE)
            info = os.statvfs(root)
        self._ledger = Ledger(limits(info.f_blocks * info.f_frsize))

    def close(self) -> None:
        """Take no more work."""
        self._threads.close()
        self._check_thread.close()

    @asynccontextmanager
    async def spool(self, key: TrialKey, max_bytes: int | None = None, room: Room | None = None) -> AsyncIterator[Spool]:
        """A place for a download. max_bytes: more than that is a StoreError; room: more than that is a CollectionCut."""
        file = await self._threads.run(self._new_file)
        admission = Admission(self._ledger, key.namespace, room)
        try:
            yield Spool(key, file, self._threads, max_bytes, admission.admit)
        finally:
            admission.close()
            await self._threads.run(file.close)  # frees the blocks, which takes a while for many

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
        """Unpack a step's logs and artifacts into their place, over an older collection of the same step and part.

        part: agent (with the artifacts) and verifier come one after another when a step is verified apart.
        types: of all sources of the download, logs first, as the runner answered; Collected has the artifact entries' only.
        sent: by name in the download, what is in the object store already.
        StoreError: the stream makes no sense, the disk is full, or a later attempt has begun.
        """
        await spool.flush()
        keep = partial(
            steps.keep_step, fd=spool.fileno(), attempt=attempt, step=step, types=types, part=part, sent=sent or {},
            received=received or Received(),
        )  # fmt: skip
        await self._read_usage(key.namespace)
        kept = await self._run(key, f"keeping step {step.name!r}", keep)
        self._ledger.take(key.namespace, f"{key.name}/{key.uid}", Collection(attempt, step.index, part), kept.used)
        return kept.collected

    async def room(self, key: TrialKey, *, attempt: int, step: Step, part: Part) -> Room:
        """Return how much of a collection may be kept, by the limits of step, trial and namespace."""
        await self._read_usage(key.namespace)
        return self._ledger.room(key.namespace, f"{key.name}/{key.uid}", Collection(attempt, step.index, part))

    async def _read_usage(self, namespace: str) -> None:
        if not self._ledger.knows(namespace):
            self._ledger.read(namespace, await self._of_root(lambda: usage_on_disk(self.root / namespace)))

    async def pointers(self, key: TrialKey) -> dict[str, Pointer]:
        """The files whose contents went straight to the object store, by path in the results."""
        return await self._run(key, "reading pointers", steps.pointers)

    async def collected(self, key: TrialKey, *, attempt: int, step: Step, entry: int) -> AsyncGenerator[bytes, None]:
        """What is kept of one artifact entry of part "agent", as a tar stream: a directory's contents, or one file."""
        chunks = await self._run(key, "looking for artifacts", lambda to: steps.picked(to, attempt, step, entry))
        async for chunk in self._stream(key, chunks):
            yield chunk

    async def keep_records(self, key: TrialKey, *, attempt: int, step: Step, records: Sequence[Mapping[str, Any]]) -> None:
        """Keep a verifier's records, once its pod is not needed any more. May be called again."""
        data = json.dumps(records).encode()
        await self._run(key, f"keeping records of step {step.name!r}", lambda to: to.keep(_RECORDS, attempt, step.index, data))

    async def records(self, key: TrialKey, attempt: int) -> list[Any]:
        """All records that are kept of an attempt."""
        kept = await self._run(key, "reading records", lambda to: to.kept(_RECORDS, attempt))
        return [record for data in kept.values() for record in json.loads(data)]

    async def begin_attempt(self, key: TrialKey, attempt: int) -> None:
        """Move what an earlier attempt left to ``attempts/N/``, unless that was done. StoreError when a later one has begun."""
        await self._run(key, f"beginning attempt {attempt}", lambda to: to.begin(attempt))

    async def finish(self, key: TrialKey, files: Mapping[str, bytes], directories: Iterable[str] = ()) -> None:
        """Write result.json and its like (store.harbor.files), and put everything on the disk for good.

        directories: places that must be there, if empty (store.harbor.directories). Lines appended to trial.log stay.
        """
        await self._run(key, "writing results", lambda to: to.finish(files, directories))

    async def append_log(self, key: TrialKey, line: str) -> None:
        """Add a line with the time to trial.log; nothing when the same text is there already."""
        await self._run(key, "writing trial.log", lambda to: to.log([line], time.time()))

    async def redact(self, key: TrialKey, secrets: Iterable[str]) -> None:
        """Replace secrets in all UTF-8 text files of the trial by [REDACTED] (Harbor 0.25, end of a trial)."""
        redactor = Redactor(secrets)
        if redactor and await self.exists(key):
            await self._run(key, "redacting", lambda to: _redact(to, redactor))

    async def remove(self, key: TrialKey) -> None:
        """Delete a trial's results, if there are any."""
        await self._run(key, "deleting", lambda to: _remove(to, self.root))
        self._ledger.free(key.namespace, f"{key.name}/{key.uid}")

    async def mark_gone(self, key: TrialKey, now: float) -> None:
        """Write down that the trial is gone since now, and delete what a crash left behind: nobody else will."""
        await self._run(key, "marking", lambda to: to.mark_gone(now))

    async def unmark(self, key: TrialKey) -> None:
        """The trial is there after all."""
        await self._run(key, "unmarking", lambda to: to.unmark())

    async def exists(self, key: TrialKey) -> bool:
        """Whether there is anything of this trial."""
        return await self._run(key, "looking", lambda to: to.path.is_dir())

    async def trials(self) -> dict[TrialKey, float | None]:
        """Every trial that has results, and since when it is marked as gone (seconds since the epoch)."""
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
        """Raise StoreError if no file can be made. A full volume is no reason: results can still be read, and room be made."""

        def make() -> None:
            with as_store_error(f"results directory {self.root}"), tempfile.TemporaryFile(dir=self.root):
                pass

        await self._check_thread.run(make)

    async def tidy(self, before: float) -> int:
        """Delete what crashes before a time (seconds since the epoch) left beside the trials' directories; returns how much."""
        return await self._of_root(lambda: directory.tidy(self.root, before))

    async def free_bytes(self) -> int:
        """Bytes left on the volume for this process."""
        info = await self._of_root(lambda: os.statvfs(self.root))
        return info.f_bavail * info.f_frsize

    async def _of_root(self, function: Callable[[], T]) -> T:
        with as_store_error(f"results directory {self.root}"):
            return await self._threads.run(function)

    async def archive(self, key: TrialKey) -> AsyncGenerator[bytes, None]:
        """The trial directory as a tar stream (PAX, uncompressed), in chunks of about 256 KiB. StoreError when there is none."""
        async for chunk in self._stream(key, tar_chunks(self._path(key))):
            yield chunk

    async def listing(self, key: TrialKey) -> AsyncGenerator[list[Found], None]:
        """All that belongs to a trial's results, in the order of the archive and some at once."""
        batches = reading.batches(self._path(key))
        try:
            while batch := await self._run(key, "listing results", lambda _: next(batches, [])):
                yield batch
        finally:
            await self._threads.run(batches.close)

    async def contents(self, key: TrialKey, path: str) -> AsyncGenerator[bytes, None]:
        """One file of the results, in chunks."""
        async with aclosing(self._stream(key, reading.contents(self._path(key), path))) as chunks:
            async for chunk in chunks:
                yield chunk

    async def note(self, key: TrialKey, name: str, data: bytes) -> None:
        """Append to a hidden file of the trial, which goes with it."""
        await self._run(key, "taking notes", lambda to: to.note(name, data))

    async def noted(self, key: TrialKey, name: str) -> bytes:
        """All that was appended to it; nothing if there is none."""
        return await self._run(key, "reading notes", lambda to: to.noted(name))

    async def part(self, key: TrialKey, path: str, *, offset: int, limit: int) -> bytes | None:
        """At most limit bytes of one file of the results; None if it is not there. offset: a negative one counts from its end."""
        return await self._run(key, "reading a file", lambda to: reading.part(to.path, path, offset, limit))

    async def _stream(self, key: TrialKey, chunks: Generator[bytes, None, None]) -> AsyncGenerator[bytes, None]:
        try:
            while chunk := await self._run(key, "reading results", lambda _: next(chunks, b"")):
                yield chunk
        finally:
            await self._threads.run(chunks.close)

    def access(self, key: TrialKey) -> str:
        """The token that a reader of these results must show: 32 hexadecimal characters."""
        return token(self._key, str(key))

    def grants(self, key: TrialKey, shown: str) -> bool:
        """Whether this is the token, told in constant time."""
        return hmac.compare_digest(self.access(key).encode(), shown.encode(errors="replace"))

    def uri(self, base: str, key: TrialKey) -> str:
        """Where the results are read; base: what the operator is reached by."""
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
