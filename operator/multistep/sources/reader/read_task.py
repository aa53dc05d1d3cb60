"""Reads tasks, and keeps a task that was read. Config and layout are in memory, the tar streams of uploads in a deleted open
file."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import tempfile
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from multistep.api.task.layout import StepLayout, TaskLayout
from multistep.api.task.suspicious_values import UnknownKey
from multistep.api.task.task_toml import TaskConfig, task_from_dict
from multistep.api.trial.content_references import Content
from multistep.api.trial.task_source import InlineSource
from multistep.errors import SourceError
from multistep.sources.reader.fork_server import ForkServer
from multistep.sources.reader.read_messages import BundleForm, ContentKey, ReadAnswer, ReadOrder, Span
from multistep.sources.task.task import text_file_tar

_CHUNK = 1 << 20
_SMALL_BYTES = 64 << 10  # maximum total size of uploads that stay in memory, which is cheaper than an open file
READING = "reading"  # directory for temporary files in the cache directory

Read = Callable[[ReadOrder], Awaitable[ReadAnswer]]
FORK_SERVER = ForkServer()


@dataclass(frozen=True, eq=False)
class ReadTask:
    """A task that was read and checked."""

    config: TaskConfig
    layout: TaskLayout
    digest: str
    unknown: Sequence[UnknownKey]
    """The first unknown keys of task.toml."""
    contents: Mapping[ContentKey, Span]
    file: int
    """Descriptor of the file with the uploads, or -1 if they are in ``small``. The file is closed when the task is evicted."""
    small: bytes
    memory: int
    """Memory that the task uses, in bytes."""
    disk: int
    """Disk space that the task uses, in bytes."""
    digests: dict[Content, str] = field(default_factory=dict)
    """Cached results of ``sha256``, for all trials of the task."""

    def __post_init__(self) -> None:
        if self.file >= 0:
            weakref.finalize(self, os.close, self.file)

    def content(self, ref: Content) -> Iterable[bytes] | AsyncIterator[bytes]:
        """Return the tar stream of an upload. Raises SourceError if the task lacks its directory."""
        if ref.kind == "file":
            return text_file_tar(ref)
        start, size = self._span(ref)
        return [self.small[start : start + size]] if self.file < 0 else self._chunks(start, size)

    async def sha256(self, ref: Content) -> str:
        """Return the SHA-256 of an upload's tar stream. Raises SourceError if the task lacks its directory."""
        if ref not in self.digests:
            start, size = self._span(ref)
            small = self.small[start : start + size]
            self.digests[ref] = await asyncio.to_thread(self._read_sha256, start, size) if self.file >= 0 else _sha256([small])
        return self.digests[ref]

    def _read_sha256(self, at: int, size: int) -> str:
        end = at + size
        return _sha256(os.pread(self.file, min(_CHUNK, end - start), start) for start in range(at, end, _CHUNK))

    def _span(self, ref: Content) -> Span:
        span = self.contents.get((ref.kind, ref.step))
        if span is None:
            raise SourceError(f"the task has no directory {ref.kind if ref.step is None else f'steps/{ref.step}/{ref.kind}'}/")
        return span

    async def _chunks(self, at: int, size: int) -> AsyncIterator[bytes]:
        end = at + size
        while at < end:
            chunk = self._cached(at, min(_CHUNK, end - at)) or await asyncio.to_thread(
                os.pread, self.file, min(_CHUNK, end - at), at
            )
            if not chunk:
                return
            at += len(chunk)
            yield chunk

    def _cached(self, at: int, size: int) -> bytes:
        """Return the bytes at an offset that are in the page cache, without waiting for the disk. Return b"" if none are."""
        buffer = bytearray(size)
        try:
            return bytes(buffer[: os.preadv(self.file, [buffer], at, os.RWF_NOWAIT)])
        except OSError:
            return b""


class TaskReader:
    """Reads tasks in child processes."""

    def __init__(self, directory: Path, read: Read = FORK_SERVER.read) -> None:
        """Create a reader. ``directory`` is the cache directory, which gets temporary files."""
        self._directory = directory / READING
        self._read = read

    def clear(self) -> None:
        """Delete temporary files of an earlier process. Call this before the first read."""
        shutil.rmtree(self._directory, ignore_errors=True)

    @contextmanager
    def spool(self) -> Iterator[Path]:
        """Return a context with a temporary file for a child."""
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            number, name = tempfile.mkstemp(dir=self._directory)
        except OSError as error:
            text = f"the operator's cache for tasks, {self._directory}, cannot be used: {error.strerror or error}"
            raise SourceError(text, transient=True) from error
        os.close(number)
        try:
            yield Path(name)
        finally:
            Path(name).unlink(missing_ok=True)

    async def inline(self, source: InlineSource, *, verification: bool, oracle: bool) -> ReadTask:
        """Read an inline task."""
        with self.spool() as path:
            path.write_text(json.dumps({"config": source.config, "files": source.files}))
            return await self.file("inline", path, "", verification=verification, oracle=oracle)

    async def file(self, form: BundleForm, path: Path, digest: str, *, verification: bool, oracle: bool) -> ReadTask:
        """Read the task in a file. Raises InvalidTask, InvalidSpec and SourceError."""
        with self.spool() as output:
            order = ReadOrder(form, str(path), str(output), digest=digest, verification=verification, oracle=oracle)
            answer = await self._read(order)
            config = task_from_dict(dict(answer.table))
            memory = len(json.dumps(answer.table)) + sum(len(layout.instruction or "") for layout in _layouts(answer.layout))
            file = os.open(output, os.O_RDONLY | os.O_CLOEXEC)
            disk = os.fstat(file).st_size
            small = b""
            if disk <= _SMALL_BYTES:
                small = os.pread(file, disk, 0)
                os.close(file)
                file, disk, memory = -1, 0, memory + disk
        return ReadTask(config, answer.layout, answer.digest, answer.unknown, answer.contents, file, small, memory, disk)


def _sha256(chunks: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()


def _layouts(layout: TaskLayout) -> list[StepLayout]:
    return [layout.root, *layout.steps.values()]
