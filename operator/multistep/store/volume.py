"""The results of trials on a directory of the operator's: ``root/NAMESPACE/NAME/UID/`` is Harbor's trial directory.

Every call may be repeated after a crash, with the same result. Whatever blocks runs in this volume's few threads.
"""

from __future__ import annotations

import hmac
import json
import os
import re
import stat
import tempfile
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Protocol, Self, TypeVar

from ..api.task import ArtifactConfig
from ..api.trial import MultiStepTrial
from ..engine.journal import Collected
from ..engine.operations import Part
from ..errors import StoreError
from . import directory
from .access import KEY_FILE, load_or_make_key, token
from .archive import picked_chunks, tar_chunks
from .directory import TrialDirectory
from .keep import Kept, Members, Pointer, keep
from .redact import Redactor
from .threads import Threads, as_store_error
from .tree import Entry, open_below, pread_all, walk

T = TypeVar("T")

_SPOOL_BUFFER_BYTES = 1024 * 1024
_LINES_BYTES = 64 * 1024
_BATCH = 100
_MEMBERS, _RECORDS, _POINTERS = "members", "records", "pointers"  # what is kept of steps beside their results
_OBJECT_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,252}")
_UID = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,63}")


@dataclass(frozen=True)
class TrialKey:
    """Which trial. StoreError when a part could not be the name or uid of an object."""

    namespace: str
    name: str
    uid: str

    def __post_init__(self) -> None:
        if not (_OBJECT_NAME.fullmatch(self.namespace) and _OBJECT_NAME.fullmatch(self.name) and _UID.fullmatch(self.uid)):
            raise StoreError(f"{self.namespace!r}/{self.name!r}/{self.uid!r} is not namespace, name and uid of an object")

    @classmethod
    def of(cls, trial: MultiStepTrial) -> Self:
        """A trial's."""
        return cls(trial.metadata.namespace, trial.metadata.name, trial.metadata.uid)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}/{self.uid}"


@dataclass(frozen=True)
class Found:
    """One thing among a trial's results: path, and what stat tells of it. target: of a link."""

    path: str
    info: os.stat_result
    target: str = ""


class Step(Protocol):
    """What is to be known of a step; an engine.plan.StepPlan is one. directory: None for a single-step task."""

    @property
    def name(self) -> str: ...
    @property
    def index(self) -> int: ...
    @property
    def directory(self) -> str | None: ...
    @property
    def artifacts(self) -> tuple[ArtifactConfig, ...]: ...


class Spool:
    """A download on its way to the volume: a nameless file, which is gone when it is closed or the operator dies."""

    def __init__(self, key: TrialKey, file: BinaryIO, threads: Threads, max_bytes: int | None) -> None:
        self._key = key
        self._file = file
        self._threads = threads
        self._max_bytes = max_bytes
        self._held: list[bytes] = []
        self._held_bytes = 0
        self.size = 0

    async def write(self, data: bytes) -> None:
        """Append. StoreError past the limit or when the disk is full."""
        self.size += len(data)
        if self._max_bytes is not None and self.size > self._max_bytes:
            raise StoreError(f"{self._key}: what is to be collected has more than {self._max_bytes} bytes")
        self._held.append(data)
        self._held_bytes += len(data)
        if self._held_bytes >= _SPOOL_BUFFER_BYTES:
            await self.flush()

    async def flush(self) -> None:
        """Write what is held in memory."""
        held, self._held, self._held_bytes = self._held, [], 0
        if held:
            await self._threads.run(self._append, held)

    def _append(self, held: Sequence[bytes]) -> None:
        with as_store_error(f"{self._key}: writing what was collected"):
            self._file.writelines(held)
            self._file.flush()

    def fileno(self) -> int:
        """Its file descriptor."""
        return self._file.fileno()

    async def lines(self) -> AsyncGenerator[list[bytes], None]:
        """What was written, line by line and some hundred at once."""
        await self.flush()
        self._file.seek(0)
        while found := await self._threads.run(lambda: self._file.readlines(_LINES_BYTES)):
            yield found

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """What was written."""
        await self.flush()
        at = 0
        while chunk := await self._threads.run(os.pread, self.fileno(), _SPOOL_BUFFER_BYTES, at):
            at += len(chunk)
            yield chunk


class Volume:
    """Results below root. unpack_threads: the most threads used. Raises StoreError when root cannot be used.

    check: called, in whatever thread, before each change that can be seen; raises if this process may not make it.
    """

    def __init__(self, root: Path, unpack_threads: int = 2, *, check: Callable[[], None] = lambda: None) -> None:
        self.root = root
        self._check = check
        self._threads = Threads(unpack_threads)
        self._check_thread = Threads(1)  # the readiness check must not queue behind unpacking
        with as_store_error(f"results directory {root}"):
            directory.make(root)
            self._key = load_or_make_key(root / KEY_FILE)

    def close(self) -> None:
        """Take no more work."""
        self._threads.close()
        self._check_thread.close()

    @asynccontextmanager
    async def spool(self, key: TrialKey, max_bytes: int | None = None) -> AsyncIterator[Spool]:
        """A place for a download. max_bytes: more than that is a StoreError."""
        file = await self._threads.run(self._new_file)
        try:
            yield Spool(key, file, self._threads, max_bytes)
        finally:
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
    ) -> Collected:
        """Unpack a step's logs and artifacts into their place, over an older collection of the same step and part.

        part: agent (with the artifacts) and verifier come one after another when a step is verified apart.
        types: of all sources of the download, logs first, as the runner answered; Collected has the artifact entries' only.
        sent: by name in the download, what is in the object store already.
        StoreError: the stream makes no sense, the disk is full, or a later attempt has begun.
        """
        await spool.flush()
        keep = partial(_keep_step, spool=spool, attempt=attempt, step=step, types=types, part=part, sent=sent or {})
        return await self._run(key, f"keeping step {step.name!r}", keep)

    async def pointers(self, key: TrialKey) -> dict[str, Pointer]:
        """The files whose contents went straight to the object store, by path in the results."""
        return await self._run(key, "reading pointers", _pointers)

    async def collected(self, key: TrialKey, *, attempt: int, step: Step, entry: int) -> AsyncGenerator[bytes, None]:
        """What is kept of one artifact entry of part "agent", as a tar stream: a directory's contents, or one file."""
        chunks = await self._run(key, "looking for artifacts", lambda to: _picked(to, attempt, step, entry))
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
        batches = _batches(self._path(key))
        try:
            while batch := await self._run(key, "listing results", lambda _: next(batches, [])):
                yield batch
        finally:
            await self._threads.run(batches.close)

    async def contents(self, key: TrialKey, path: str) -> AsyncGenerator[bytes, None]:
        """One file of the results, in chunks."""
        async with aclosing(self._stream(key, _contents(self._path(key), path))) as chunks:
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
        return await self._run(key, "reading a file", lambda to: _part(to.path, path, offset, limit))

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


def _keep_step(
    to: TrialDirectory,
    *,
    spool: Spool,
    attempt: int,
    step: Step,
    types: Sequence[str],
    part: Part,
    sent: Mapping[str, Pointer],
) -> Collected:
    to.begin(attempt)
    with to.work() as work:
        kept: Kept = keep(spool.fileno(), work, () if part == "verifier" else step.artifacts, types, part, sent)
        if kept.pointers or to.kept(_POINTERS, attempt):
            pointers = {f"{_place(step)}{path}": asdict(each) for path, each in kept.pointers.items()}
            to.keep(_POINTERS, attempt, step.index, json.dumps(pointers).encode())
        if part == "agent":
            members = [asdict(each) for each in kept.members]
            to.keep(_MEMBERS, attempt, step.index, json.dumps(members).encode())
        if step.directory is not None and part == "all":
            to.put(work, f"steps/{step.directory}")
        else:
            for made in sorted(work.iterdir()):
                to.put(made, f"{_place(step)}{made.name}")
    to.log((f"step {step.name}: {note}" for note in kept.notes), time.time())
    return kept.collected


def _batches(top: Path) -> Generator[list[Found], None, None]:
    batch: list[Found] = []
    for entry in walk(top, hidden=False):
        batch.append(_found(entry))
        if len(batch) == _BATCH:
            yield batch
            batch = []
    yield batch


def _found(entry: Entry) -> Found:
    is_link = stat.S_ISLNK(entry.info.st_mode)
    return Found(entry.path, entry.info, os.readlink(entry.name, dir_fd=entry.parent) if is_link else "")


def _contents(top: Path, path: str) -> Generator[bytes, None, None]:
    fd = open_below(top, path)
    try:
        yield from pread_all(fd, 0, os.fstat(fd).st_size)
    finally:
        os.close(fd)


def is_result(path: str) -> bool:
    """Whether a path can be that of a result: none that leads elsewhere, and nothing that is hidden at the top."""
    parts = path.split("/")
    return not ("" in parts or ".." in parts or parts[0].startswith("."))


def _part(top: Path, path: str, offset: int, limit: int) -> bytes | None:
    if not is_result(path):
        return None
    try:
        fd = open_below(top, path)
    except (OSError, ValueError):
        return None
    try:
        info = os.fstat(fd)
        begin = offset if offset >= 0 else max(0, info.st_size + offset)
        return b"".join(pread_all(fd, begin, limit)) if stat.S_ISREG(info.st_mode) else None
    finally:
        os.close(fd)


def _pointers(to: TrialDirectory) -> dict[str, Pointer]:
    current, found = to.attempt(), dict[str, Pointer]()
    for attempt in range(1, current + 1):
        top = "" if attempt == current else f"{directory.ATTEMPTS}/{attempt}/"
        for data in to.kept(_POINTERS, attempt).values():
            found |= {f"{top}{path}": Pointer(**each) for path, each in json.loads(data).items()}
    return found


def _redact(to: TrialDirectory, redactor: Redactor) -> None:
    to.check()
    redactor.tree(to.path)


def _remove(to: TrialDirectory, root: Path) -> None:
    to.check()
    directory.remove(to.path, root)


def _place(step: Step) -> str:
    return "" if step.directory is None else f"steps/{step.directory}/"


def _picked(to: TrialDirectory, attempt: int, step: Step, entry: int) -> Generator[bytes, None, None]:
    kept = to.kept(_MEMBERS, attempt).get(step.index)
    if kept is None:
        raise StoreError(f"what was collected in step {step.name!r} is not here any more")
    return picked_chunks(to.path / f"{_place(step)}artifacts", Members(**json.loads(kept)[entry]).names())
