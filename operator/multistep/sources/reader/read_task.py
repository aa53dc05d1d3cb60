"""A task that the operator has read: config and layout are in memory, the tar streams of its uploads in an unlinked file."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from multistep.api.task.layout import StepLayout, TaskLayout
from multistep.api.task.suspicious_values import UnknownKey
from multistep.api.task.task_toml import TaskConfig, task_from_dict
from multistep.api.trial.content_references import Content
from multistep.api.trial.task_source import InlineSource
from multistep.errors import InvalidSpec, SourceError
from multistep.sources.reader.__main__ import STATUS
from multistep.sources.reader.read_messages import Answer, ContentKey, Form, Order, Span, parse_answer
from multistep.sources.task.read_limits import ANSWER_BYTES, CPU_SECONDS, WALL_SECONDS, child_environment
from multistep.sources.task.task import text_file

_COMMAND = (sys.executable, "-P", "-m", "multistep.sources.reader")
_LONGER_SECONDS = 5.0
_STARTS = 2  # maximum number of tries to send an order: the server may have been killed since its last order
_ANSWER_CHUNK = 1 << 18


class ForkServer:
    """The single server process for all reads. It starts at the first read, and is restarted if it was killed.

    cpu_seconds: limit of the CPU time of each read.
    """

    def __init__(self, cpu_seconds: int = CPU_SECONDS) -> None:
        self._cpu_seconds = cpu_seconds
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    async def read(self, order: Order) -> Answer:
        """Read a task in a child. Raises InvalidTask, InvalidSpec, SourceError, and ReadFailed if the child does not answer."""
        output, code = b"", None
        try:
            async with asyncio.timeout(WALL_SECONDS + _LONGER_SECONDS):
                output, code = await self._exchange(order.to_json())
        except TimeoutError:  # the server kills each child earlier than that, so it hangs itself: the next read starts another
            self.close()
        if code == -signal.SIGXCPU:
            advice = "make patterns in .harborignore simpler, keys in task.toml shorter, or files and links fewer"
            raise InvalidSpec(f"spec.task: reading the task took more than {self._cpu_seconds} s of CPU time: {advice}")
        if code != 0:
            raise ReadFailed(f"the process that read the task {_how(code)}")
        try:
            return parse_answer(output)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ReadFailed(f"the process that read the task gave no answer: {type(error).__name__}") from None

    async def _exchange(self, order: bytes) -> tuple[bytes, int | None]:
        """Return the child's answer and its exit status (None if unknown)."""
        loop = asyncio.get_running_loop()
        talk, talk_child = socket.socketpair()
        status, status_server = socket.socketpair()
        with talk, status:
            with talk_child, status_server:
                self._send(talk_child, status_server)
            talk.setblocking(False)
            status.setblocking(False)
            with suppress(ConnectionError):
                await loop.sock_sendall(talk, order)
                talk.shutdown(socket.SHUT_WR)
            output = bytearray()
            with suppress(ConnectionError):
                while len(output) <= ANSWER_BYTES and (data := await loop.sock_recv(talk, _ANSWER_CHUNK)):
                    output += data
            code = await loop.sock_recv(status, STATUS.size)
            return bytes(output), STATUS.unpack(code)[0] if len(code) == STATUS.size else None

    def _send(self, *sockets: socket.socket) -> None:
        for _ in range(_STARTS):
            control = self._control or self._start()
            try:
                socket.send_fds(control, [b"r"], [each.fileno() for each in sockets])
                return
            except OSError:
                self.close()
        raise ReadFailed("the process that reads tasks could not be started")

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                (*_COMMAND, str(self._cpu_seconds)),
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # a traceback may contain secrets
                env=child_environment(),
                start_new_session=True,
            )
        ours.setblocking(False)
        self._control = ours
        return ours

    def close(self) -> None:
        """Kill the server and its children."""
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None


class ReadFailed(SourceError):
    """A child died or did not answer. The cause may be outside of the task, so the read is retried a few times."""

    def __init__(self, message: str) -> None:
        super().__init__(message, transient=True, retry_seconds=5.0)


def _how(code: int | None) -> str:
    if code == -signal.SIGALRM or code is None:
        return f"did not end within {WALL_SECONDS:g} s"
    if code == -signal.SIGKILL:
        return "was killed: it took too long, or the node was short of memory"
    return f"ended with status {code}"


_CHUNK = 1 << 20
_SMALL_BYTES = 64 << 10  # uploads up to this total size stay in memory, which is cheaper than an open file
READING = "reading"  # directory for temporary files, in the cache directory

Read = Callable[[Order], Awaitable[Answer]]
SERVER = ForkServer()


@dataclass(frozen=True, eq=False)
class ReadTask:
    """A task that was read and checked. unknown: the first unknown keys of task.toml; memory, disk: bytes that the task uses."""

    config: TaskConfig
    layout: TaskLayout
    digest: str
    unknown: Sequence[UnknownKey]
    contents: Mapping[ContentKey, Span]
    file: int  # descriptor, closed when the task is evicted; -1: the contents are in `small`
    small: bytes
    memory: int
    disk: int
    digests: dict[Content, str] = field(default_factory=dict)  # cached results of sha256, for all trials of the task

    def __post_init__(self) -> None:
        if self.file >= 0:
            weakref.finalize(self, os.close, self.file)

    def content(self, ref: Content) -> Iterable[bytes] | AsyncIterator[bytes]:
        """Return the tar stream of one upload. Raises SourceError if the task has no such directory."""
        if ref.kind == "file":
            return text_file(ref)
        start, size = self._span(ref)
        return [self.small[start : start + size]] if self.file < 0 else self._chunks(start, size)

    async def sha256(self, ref: Content) -> str:
        """Return the SHA-256 of the tar stream of one upload. Raises SourceError if the task has no such directory."""
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
        """Return the bytes at an offset as far as they are in the page cache, without waiting for the disk; b"" if none are."""
        buffer = bytearray(size)
        try:
            return bytes(buffer[: os.preadv(self.file, [buffer], at, os.RWF_NOWAIT)])
        except OSError:
            return b""


class TaskReader:
    """Reads tasks in child processes. directory: the cache directory, for temporary files."""

    def __init__(self, directory: Path, read: Read = SERVER.read) -> None:
        self._directory = directory / READING
        self._read = read

    def clear(self) -> None:
        """Delete temporary files of an earlier process. Call it before the first read."""
        shutil.rmtree(self._directory, ignore_errors=True)

    @contextmanager
    def spool(self) -> Iterator[Path]:
        """Create a temporary file for a child's input."""
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

    async def file(self, form: Form, path: Path, digest: str, *, verification: bool, oracle: bool) -> ReadTask:
        """Read the task in a file. Raises InvalidTask, InvalidSpec and SourceError."""
        with self.spool() as output:
            order = Order(form, str(path), str(output), digest=digest, verification=verification, oracle=oracle)
            answer = await self._read(order)
            config = task_from_dict(dict(answer.table))
            memory = len(json.dumps(answer.table)) + sum(len(each.instruction or "") for each in _layouts(answer.layout))
            file = os.open(output, os.O_RDONLY | os.O_CLOEXEC)
            disk, small = os.fstat(file).st_size, b""
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
