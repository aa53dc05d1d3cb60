"""The results of trials, and the logs of builds, on the operator's volume. ``root/NAMESPACE/NAME/UID/`` is Harbor's trial
directory."""

from __future__ import annotations

import os
import re
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Final

from multistep.engine.journal.results_limits import ResultsLimits
from multistep.errors import StoreError
from multistep.store.checkpoints.checkpoint_files import TOP
from multistep.store.checkpoints.checkpoint_store import Checkpoints
from multistep.store.evidence.writer import EvidenceWriter
from multistep.store.files.redact_secrets import Redactor
from multistep.store.files.thread_pool import as_store_error
from multistep.store.files.trial_key import TrialKey
from multistep.store.trial import directory, listing
from multistep.store.trial.access_tokens import KEY_FILE, AccessTokens, load_or_make_key
from multistep.store.trial.collect_files import Collections
from multistep.store.trial.directory import TrialDirectory
from multistep.store.trial.disk_calls import Disk
from multistep.store.trial.listing import ResultEntry, tar_chunks
from multistep.store.trial.volume_usage import VolumeUsage, no_limits

MAX_BYTES: Final = 16 << 20
_BUILD = re.compile(r"[0-9a-f]{64}")


class BuildLogs:
    """Writes and reads the logs of all builds. Each call is idempotent."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._directory = disk.root / ".builds"

    async def write(self, build: str, offset: int, data: bytes) -> None:
        """Write a part of a log at ``offset``, and truncate the log after it, because later bytes come from an earlier pod of the
        build. A part that ends beyond MAX_BYTES is ignored."""
        if offset + len(data) <= MAX_BYTES:
            await self._disk.of_root(lambda: self._write(self._path(build), offset, data))

    async def exists(self, build: str) -> bool:
        """Return whether this build has a log."""
        return await self._disk.of_root(self._path(build).exists)

    async def part(self, build: str, offset: int, limit: int) -> bytes | None:
        """Return at most ``limit`` bytes of a log, or None if it does not exist."""
        if not _BUILD.fullmatch(build):
            return None
        return await self._disk.of_root(lambda: _read(self._path(build), offset, limit))

    async def remove_older(self, before: float) -> int:
        """Delete the logs that were last written before a time (seconds since the epoch), and return their number."""
        return await self._disk.of_root(lambda: _remove_log(self._directory, before))

    def _path(self, build: str) -> Path:
        return self._directory / f"{build}.log"

    def _write(self, path: Path, offset: int, data: bytes) -> None:
        self._directory.mkdir(mode=0o700, exist_ok=True)
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.pwrite(file, data, offset)
            os.ftruncate(file, offset + len(data))
        finally:
            os.close(file)


def _read(path: Path, offset: int, limit: int) -> bytes | None:
    try:
        with path.open("rb") as file:
            file.seek(max(0, offset))
            return file.read(limit)
    except FileNotFoundError:
        return None


def _remove_log(directory: Path, before: float) -> int:
    old = [log for log in directory.glob("*.log") if log.stat().st_mtime < before]
    for log in old:
        log.unlink(missing_ok=True)
    return len(old)


_CHECKPOINT_THREADS = 2


class ResultsVolume:
    """The results of all trials, below the directory ``root``. The constructor raises StoreError if it cannot be used.

    ``limits`` and ``checkpoint_limits`` map the volume's size in bytes to the limits of results and of checkpoints. ``check`` is
    called before each visible change, in any thread, and raises if this process may not write. ``unpack_threads`` is the size of
    the thread pool.
    """

    def __init__(
        self,
        root: Path,
        unpack_threads: int = 2,
        *,
        check: Callable[[], None] = lambda: None,
        limits: Callable[[int], ResultsLimits] = no_limits,
        checkpoint_limits: Callable[[int], ResultsLimits] = no_limits,
    ) -> None:
        with as_store_error(f"results directory {root}"):
            directory.make_directory(root)
            self.access = AccessTokens(load_or_make_key(root / KEY_FILE))
            info = os.statvfs(root)
        self.root = root
        self.disk = Disk(root, unpack_threads, check)
        size = info.f_blocks * info.f_frsize
        # CephFS has no limit, and reports its number of objects as f_files.
        inodes = info.f_files if info.f_ffree <= info.f_files else 0
        self._ledger = VolumeUsage(_within_inodes(limits(size), inodes))
        self.collections = Collections(self.disk, self._ledger)
        # Checkpoints have threads of their own, so that results of other trials do not wait while gigabytes are flushed.
        self.checkpoints = Checkpoints(Disk(root, _CHECKPOINT_THREADS, check), checkpoint_limits(size))
        self.evidence = EvidenceWriter(self.disk)
        self.build_logs = BuildLogs(self.disk)

    def close(self) -> None:
        """Reject further calls. Calls that run still finish."""
        self.disk.close()
        self.checkpoints.close()

    async def start_attempt(self, key: TrialKey, attempt: int, kept: Sequence[str] = ()) -> None:
        """Move an earlier attempt's results to ``attempts/N/``, except the directories of kept steps. The call is idempotent.

        Raises StoreError if a later attempt has started.
        """
        await self.disk.run(key, f"starting attempt {attempt}", lambda to: to.start_attempt(attempt, kept))

    async def finish(self, key: TrialKey, files: Mapping[str, bytes], directories: Iterable[str] = ()) -> None:
        """Write result.json and the trial's other files (store.harbor.trial_files.trial_files), then flush everything to the disk.

        Missing ``directories`` (store.harbor.trial_files.step_directories) are created. Lines that were appended to trial.log stay.
        """
        await self.disk.run(key, "writing results", lambda to: to.finish(files, directories))

    async def append_log(self, key: TrialKey, line: str) -> None:
        """Append a line with the current time to trial.log, unless the log already has a line with this text."""
        await self.disk.run(key, "writing trial.log", lambda to: to.log([line], time.time()))

    async def redact(self, key: TrialKey, secrets: Iterable[str]) -> None:
        """Replace secrets in all UTF-8 text files of the trial by [REDACTED], as Harbor 0.26 does at the end of a trial."""
        redactor = Redactor(secrets)
        if redactor and await self.exists(key):
            await self.disk.run(key, "redacting", lambda to: _redact(to, redactor))

    async def remove(self, key: TrialKey, *, but_checkpoints: bool = False) -> None:
        """Delete a trial's results, if they exist. With ``but_checkpoints``, its checkpoints stay."""
        await self.disk.run(key, "deleting", lambda to: _remove(to, self.root, but_checkpoints=but_checkpoints))
        self._ledger.free(key.namespace, f"{key.name}/{key.uid}")
        if not but_checkpoints:
            self.checkpoints.forget(key)

    async def mark_gone(self, key: TrialKey, now: float) -> None:
        """Mark the trial as deleted since ``now``. Delete temporary files that a crash left, and checkpoints that ``retain`` did
        not mark."""
        await self.disk.run(key, "marking", lambda to: to.mark_gone(now))
        await self.checkpoints.remove(key, unless_kept=True)

    async def unmark(self, key: TrialKey) -> None:
        """Delete the trial's deletion mark."""
        await self.disk.run(key, "unmarking", lambda to: to.unmark())

    async def exists(self, key: TrialKey) -> bool:
        """Return whether results of this trial exist. Hidden files, such as checkpoints, are not results."""
        return await self.disk.run(key, "checking", lambda to: directory.has_results(to.path))

    async def trials(self, namespace: str = "*", name: str = "*") -> dict[TrialKey, float | None]:
        """Return the trials with results, each with the time of its deletion mark (seconds since the epoch) or None.

        ``namespace`` and ``name`` select trials. Several trials may have the same name, but at most one of them still exists in the
        cluster.
        """
        return await self.disk.of_root(lambda: dict(self._trials(f"{namespace}/{name}/*")))

    def _trials(self, pattern: str) -> Iterator[tuple[TrialKey, float | None]]:
        for path in self.root.glob(pattern):
            try:
                key = TrialKey(*path.relative_to(self.root).parts)
            except StoreError:
                continue  # not a trial, e.g. lost+found
            if path.is_dir():
                yield key, TrialDirectory(path).gone_since()

    async def archive(self, key: TrialKey) -> AsyncGenerator[bytes, None]:
        """Yield the trial directory as an uncompressed PAX tar stream in chunks of about 256 KiB. Raises StoreError if it is
        missing."""
        async for chunk in self.disk.stream(key, tar_chunks(self.disk.path(key))):
            yield chunk

    async def listing(self, key: TrialKey) -> AsyncGenerator[list[ResultEntry], None]:
        """Yield all entries of a trial's results in batches, in the order of the archive."""
        batches = listing.entry_batches(self.disk.path(key))
        try:
            while batch := await self.disk.run(key, "listing results", lambda _: next(batches, [])):
                yield batch
        finally:
            await self.disk.threads.run(batches.close)

    async def contents(self, key: TrialKey, path: str) -> AsyncGenerator[bytes, None]:
        """Yield one file of the results in chunks."""
        async with aclosing(self.disk.stream(key, listing.file_chunks(self.disk.path(key), path))) as chunks:
            async for chunk in chunks:
                yield chunk

    async def note(self, key: TrialKey, name: str, data: bytes) -> None:
        """Append to a hidden file in the trial's directory."""
        await self.disk.run(key, "writing notes", lambda to: to.note(name, data))

    async def notes(self, key: TrialKey, name: str) -> bytes:
        """Return the contents of a hidden file, or b"" if it does not exist."""
        return await self.disk.run(key, "reading notes", lambda to: to.notes(name))

    async def part(self, key: TrialKey, path: str, *, offset: int, limit: int) -> bytes | None:
        """Return at most ``limit`` bytes of one file, or None if it does not exist. A negative offset counts from the end."""
        return await self.disk.run(key, "reading a file", lambda to: listing.read_part(to.path, path, offset, limit))


def _within_inodes(limits: ResultsLimits, inodes: int) -> ResultsLimits:
    """Return the limits, with at most 80 % of the volume's inodes for each namespace. ``inodes`` is 0 for an unlimited number."""
    namespace = limits.namespace
    return replace(limits, namespace=replace(namespace, files=min(namespace.files, inodes * 4 // 5))) if inodes else limits


def _redact(to: TrialDirectory, redactor: Redactor) -> None:
    to.check()
    redactor.tree(to.path)


def _remove(to: TrialDirectory, root: Path, *, but_checkpoints: bool) -> None:
    to.check()
    if but_checkpoints and (to.path / TOP).exists():
        directory.clear_directory(to.path, but=TOP)
    else:
        directory.remove_tree(to.path, root)
