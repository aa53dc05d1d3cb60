"""Runs blocking calls on the volume's files in a small thread pool, and raises their errors as StoreError."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncGenerator, Callable, Generator
from errno import EDQUOT, ENOSPC
from pathlib import Path
from typing import BinaryIO, TypeVar

from multistep.store.files.thread_pool import Threads, as_store_error
from multistep.store.files.trial_key import TrialKey
from multistep.store.trial import directory
from multistep.store.trial.directory import TrialDirectory

T = TypeVar("T")


class Disk:
    """The volume's files, below ``root``. ``threads`` is the size of the thread pool. ``check`` is called before each visible
    change, and raises if this process may not write."""

    def __init__(self, root: Path, threads: int, check: Callable[[], None]) -> None:
        self.root = root
        self.threads = Threads(threads)
        self.check = check
        self._check_thread = Threads(1)  # a separate thread, so that the readiness check does not wait until downloads are unpacked

    def close(self) -> None:
        """Reject further calls. Calls that run still finish."""
        self.threads.close()
        self._check_thread.close()

    def new_file(self) -> BinaryIO:
        """Create and return a temporary file without a name. This blocks."""
        with as_store_error(f"results directory {self.root}"):
            return tempfile.TemporaryFile(dir=self.root, prefix=directory.SPOOL)

    def path(self, key: TrialKey) -> Path:
        """Return the directory of a trial's results."""
        return self.root / key.namespace / key.name / key.uid

    async def run(self, key: TrialKey, what: str, function: Callable[[TrialDirectory], T]) -> T:
        """Call a function with the trial's directory in a thread. ``what`` names the action in the error message. Raises
        StoreError."""
        with as_store_error(f"{key}: {what}"):
            return await self.threads.run(function, TrialDirectory(self.path(key), self.check))

    async def stream(self, key: TrialKey, chunks: Generator[bytes, None, None]) -> AsyncGenerator[bytes, None]:
        """Yield the chunks of a blocking generator, which is run in threads."""
        try:
            while chunk := await self.run(key, "reading results", lambda _: next(chunks, b"")):
                yield chunk
        finally:
            await self.threads.run(chunks.close)

    async def of_root(self, function: Callable[[], T]) -> T:
        """Call a function without arguments in a thread. Raises StoreError instead of OSError."""
        with as_store_error(f"results directory {self.root}"):
            return await self.threads.run(function)

    async def try_to_write(self) -> None:
        """Raise StoreError if no file can be created for another reason than a lack of space or inodes. The results on a full
        volume can still be read and deleted."""

        def make() -> None:
            with as_store_error(f"results directory {self.root}"):
                try:
                    tempfile.TemporaryFile(dir=self.root).close()
                except OSError as error:
                    if error.errno not in (ENOSPC, EDQUOT):
                        raise

        await self._check_thread.run(make)

    async def tidy(self, before: float) -> int:
        """Delete temporary files that are older than ``before`` (seconds since the epoch), and return their number."""
        return await self.of_root(lambda: directory.delete_leftovers(self.root, before))

    async def free_bytes(self) -> int:
        """Return the free bytes on the volume."""
        info = await self.of_root(lambda: os.statvfs(self.root))
        return info.f_bavail * info.f_frsize
