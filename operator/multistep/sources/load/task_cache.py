"""An LRU cache of fetched tasks on the operator's disk, in files named ``KEY-DIGEST``.

Cached files may be deleted at any time: they are fetched again. A file whose digest does not match is deleted when it is read.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from multistep.errors import SourceError
from multistep.sources.fetch.__main__ import INCOMING
from multistep.sources.fetch.fetch_messages import Fetched, Order, Request, Rules, parse_answer, progress_file
from multistep.sources.fetch.output_file import name_prefix
from multistep.sources.task.read_limits import child_environment


@dataclass(frozen=True)
class CachedFile:
    """A cached file. digest: the digest in the file's name; the contents are not verified."""

    path: Path
    size: int

    @property
    def digest(self) -> str:
        """Return ``sha256:`` and 64 hexadecimal digits."""
        return f"sha256:{self.path.name.rpartition('-')[2]}"


class Cache:
    """The cache. most: maximum bytes of all files; the newest file stays even if it is larger. Not safe for several processes."""

    def __init__(self, directory: Path, most: int) -> None:
        self.directory = directory
        self.incoming = directory / INCOMING
        self._most = most
        self._files: OrderedDict[str, CachedFile] = OrderedDict()  # cached files by cache key, the least recently used first

    def open(self) -> None:
        """List the existing files and delete incomplete ones. Raises OSError."""
        shutil.rmtree(self.incoming, ignore_errors=True)
        self.incoming.mkdir(parents=True)
        found = [(each.stat(), each) for each in self.directory.iterdir() if each.is_file()]
        for stat, path in sorted(found, key=lambda each: each[0].st_mtime):
            self._files[path.name.rpartition("-")[0]] = CachedFile(path, stat.st_size)
        self._evict()

    @property
    def size(self) -> int:
        """Return the total bytes of all files."""
        return sum(each.size for each in self._files.values())

    def put(self, key: str, fetched: Fetched) -> None:
        """Move a file from the incoming directory into the cache, atomically. Raises OSError."""
        source = self.incoming / Path(fetched.file).name
        path = self.directory / f"{key}-{fetched.digest.removeprefix('sha256:')}"
        size = source.stat().st_size
        source.rename(path)
        former = self._files.pop(key, None)
        if former is not None and former.path != path:
            former.path.unlink(missing_ok=True)
        self._files[key] = CachedFile(path, size)
        self._evict()

    def find(self, key: str) -> CachedFile | None:
        """Return the file of this key, or None."""
        if key in self._files:
            self._files.move_to_end(key)
            with suppress(OSError):
                os.utime(self._files[key].path)  # the mtimes restore the LRU order after a restart
        return self._files.get(key)

    def discard(self, file: CachedFile) -> None:
        """Delete a corrupt cached file, unless a newer file has replaced it."""
        key = file.path.name.rpartition("-")[0]
        if self._files.get(key) == file:
            self.drop(key)

    def drop(self, key: str) -> None:
        """Delete the file of a key."""
        if (file := self._files.pop(key, None)) is not None:
            file.path.unlink(missing_ok=True)

    def _evict(self) -> None:
        while self.size > self._most and len(self._files) > 1:
            self.drop(next(iter(self._files)))


_COMMAND = (sys.executable, "-P", "-m", "multistep.sources.fetch")
_ANSWER_BYTES = 4 << 20  # maximum size of an answer, which can have the names and digests of many tasks
_LONGER_SECONDS = 5.0


async def fetch(request: Request, rules: Rules, cache: Path) -> Fetched:
    """Fetch a task in a child process, which is killed on cancellation. Raises SourceError."""
    process = await _start()
    try:
        output = await _output(process, request, rules, cache)
        return _parsed(output, process.returncode, request, rules)
    except BaseException:
        await asyncio.to_thread(_delete_files, cache / INCOMING, process.pid)
        raise


async def _start() -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *_COMMAND,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,  # a traceback may contain credentials
        env=child_environment("SSL_CERT_FILE", "SSL_CERT_DIR"),
        start_new_session=True,
    )


async def _output(process: asyncio.subprocess.Process, request: Request, rules: Rules, cache: Path) -> bytes:
    """Return what the process writes; b"" after the timeout. Always kill the process, and wait until it has ended."""
    try:
        async with asyncio.timeout(rules.seconds + _LONGER_SECONDS):
            return await _communicate(process, Order(request, rules, str(cache)).to_json())
    except TimeoutError:
        return b""
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        progress_file(cache / INCOMING, request).unlink(missing_ok=True)


def _delete_files(incoming: Path, pid: int) -> None:
    """Delete the files of a process that was killed, or failed, before it deleted them itself."""
    for path in incoming.glob(f"{name_prefix(pid)}*"):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with suppress(OSError):  # the fetch's own error matters more
                path.unlink(missing_ok=True)


async def _communicate(process: asyncio.subprocess.Process, order: bytes) -> bytes:
    assert process.stdin is not None and process.stdout is not None
    with suppress(BrokenPipeError, ConnectionResetError, RuntimeError):  # uvloop: RuntimeError if the process has already ended
        process.stdin.write(order)
        await process.stdin.drain()
        process.stdin.close()
    output = b""
    while len(output) < _ANSWER_BYTES and (data := await process.stdout.read(_ANSWER_BYTES)):
        output += data
    return output


def _parsed(output: bytes, code: int | None, request: Request, rules: Rules) -> Fetched:
    what = request.location.partition("?")[0]
    try:
        return parse_answer(output)
    except SourceError as error:
        raise SourceError(_without(str(error), request), transient=error.transient, reason=error.reason) from None
    except (ValueError, KeyError, TypeError):
        if code in (-signal.SIGALRM, -signal.SIGKILL, -signal.SIGXCPU):
            raise SourceError(f"{what} could not be fetched within {rules.seconds:g} s", transient=True) from None
        raise SourceError(f"{what} could not be fetched: the process for it ended with status {code}", transient=True) from None


def _without(message: str, request: Request) -> str:
    """Return the message with credentials redacted, in case a library's error contains them."""
    for secret in request.credentials.values():
        if len(secret.strip()) > 3:
            message = message.replace(secret.strip(), "***")
    return message
