"""Runs a volume's blocking calls in a small thread pool, so that they do not block the event loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import BinaryIO, ParamSpec, TypeVar

from multistep.errors import StoreError
from multistep.store.files.trial_key import TrialKey

P = ParamSpec("P")
T = TypeVar("T")


class Threads:
    """A thread pool with at most ``number`` threads."""

    def __init__(self, number: int) -> None:
        self._pool = ThreadPoolExecutor(number, thread_name_prefix="store")

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function in a thread. If cancelled, wait until the call ends, because it may use files that the caller closes
        next."""
        job = self._pool.submit(partial(function, *args, **kwargs))
        waiting = asyncio.wrap_future(job)
        try:
            return await asyncio.shield(waiting)
        except asyncio.CancelledError:
            if not job.cancel():
                await asyncio.wait([waiting])
                waiting.cancelled() or waiting.exception()  # asyncio logs exceptions that nobody retrieves
            raise

    def close(self) -> None:
        """Reject further calls. Calls that run still finish."""
        self._pool.shutdown(wait=False)


@contextmanager
def as_store_error(what: str) -> Iterator[None]:
    """Raise an OSError of the context as a StoreError. ``what`` names the operation in the message."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"{what}: {error.strerror or error}") from error


_BUFFER_BYTES = 1024 * 1024
_LINES_BYTES = 64 * 1024


def close_discarded(file: BinaryIO) -> None:
    """Close a file that is discarded, and ignore errors. On a full volume, closing fails to write buffered bytes, which must not
    hide the error of an earlier write."""
    with suppress(OSError):
        file.close()


class Spool:
    """A download in a temporary file. The file of a checkpoint has a name. Other files have none, so that the kernel deletes them
    when they are closed or the operator dies.

    ``admit`` is called with the number of bytes before each write, and raises an error to reject the write.
    """

    def __init__(
        self, key: TrialKey, file: BinaryIO, threads: Threads, max_bytes: int | None, admit: Callable[[int], None]
    ) -> None:
        self._key = key
        self._file = file
        self._threads = threads
        self._max_bytes = max_bytes
        self._admit = admit
        self._held: list[bytes] = []
        self._held_bytes = 0
        self.size = 0

    async def write(self, data: bytes) -> None:
        """Append data. Raises StoreError beyond ``max_bytes`` or if the disk is full, CollectionCut beyond the results limits."""
        self._admit(len(data))
        self.size += len(data)
        if self._max_bytes is not None and self.size > self._max_bytes:
            raise StoreError(f"{self._key}: the download has more than {self._max_bytes} bytes")
        self._held.append(data)
        self._held_bytes += len(data)
        if self._held_bytes >= _BUFFER_BYTES:
            await self.flush()

    async def flush(self) -> None:
        """Write the buffered data to the file."""
        held, self._held, self._held_bytes = self._held, [], 0
        if held:
            await self._threads.run(self._append, held)

    def _append(self, held: Sequence[bytes]) -> None:
        with as_store_error(f"{self._key}: writing the download"):
            self._file.writelines(held)
            self._file.flush()

    def fileno(self) -> int:
        """Return the file descriptor."""
        return self._file.fileno()

    async def lines(self) -> AsyncGenerator[list[bytes], None]:
        """Yield the written lines in batches of about 64 KiB."""
        await self.flush()
        self._file.seek(0)
        while lines := await self._threads.run(lambda: self._file.readlines(_LINES_BYTES)):
            yield lines

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield the written data in chunks."""
        await self.flush()
        at = 0
        while chunk := await self._threads.run(os.pread, self.fileno(), _BUFFER_BYTES, at):
            at += len(chunk)
            yield chunk
