"""Writes the output file of a fetch within limits, and hashes it while it is written."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

from multistep.api.trial.values import NOT_FOUND, TOO_LARGE
from multistep.errors import SourceError
from multistep.sources.fetch.fetch_messages import FetchedTask, FetchOrder, FetchResult
from multistep.sources.task.bundle import BundleEntry, BundleLimits, read_members, tar_chunks


def name_prefix(pid: int) -> str:
    """Return the prefix of the names of all files that the fetching process ``pid`` creates. Its parent finds the files by it."""
    return f"{pid}-"


class OutputFile:
    """A new file in a directory. It is deleted if the ``with`` block raises an error."""

    def __init__(self, directory: Path) -> None:
        number, name = tempfile.mkstemp(dir=directory, prefix=name_prefix(os.getpid()))
        self.path = Path(name)
        self._stream = os.fdopen(number, "wb")
        self._sha = hashlib.sha256()

    def write(self, data: bytes) -> None:
        """Append data to the file."""
        self._sha.update(data)
        self._stream.write(data)

    @property
    def digest(self) -> str:
        """The digest of the bytes written so far."""
        return f"sha256:{self._sha.hexdigest()}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        failed = True
        try:
            self._stream.close()  # can fail on a full volume, because it writes buffered data
            failed = kind is not None
        finally:
            if failed:
                self.path.unlink(missing_ok=True)


def write_tar(output: OutputFile, entries: Iterable[tuple[str, BundleEntry]]) -> None:
    """Write the entries as a deterministic tar, in the given order."""
    for chunk in tar_chunks(entries):
        output.write(chunk)


class SizeBudget:
    """Enforces the limits on a task's size."""

    def __init__(self, limits: BundleLimits, what: str) -> None:
        """Start at 0. ``what`` names the task in error messages."""
        self._limits = limits
        self._bytes = 0
        self._entries = 0
        self._what = what

    def add(self, size: int, entries: int = 1) -> None:
        """Count further entries, which have ``size`` bytes in total. Raises SourceError if a limit is exceeded."""
        self._bytes += size
        self._entries += entries
        if self._bytes > self._limits.uncompressed:
            raise SourceError(f"{self._what} has more than {self._limits.uncompressed} bytes, which is the limit", reason=TOO_LARGE)
        if self._entries > self._limits.entries:
            raise SourceError(f"{self._what} has more than {self._limits.entries} files, which is the limit", reason=TOO_LARGE)


_NAME_CHARACTERS = 253


def entries_below(file: Path, path: str, order: FetchOrder) -> dict[str, BundleEntry]:
    """Return the entries below ``path`` in an archive, by their path relative to it."""
    prefix = f"{path}/" if path else ""
    with file.open("rb") as stream:
        members = read_members(stream, order.rules.limits)
        return {name.removeprefix(prefix): entry for name, entry in members if name.startswith(prefix)}


def split_tasks(file: Path, path: str, order: FetchOrder, revision: str) -> FetchResult:
    """Write each task in an archive to a bundle of its own in the same directory. Raises SourceError if the archive has no task."""
    directories: dict[str, dict[str, BundleEntry]] = defaultdict(dict)
    for name, entry in entries_below(file, path, order).items():
        top, _, rest = name.partition("/")
        if rest:
            directories[top][rest] = entry
    tasks = sorted(name for name, entries in directories.items() if entries.get("task.toml", BundleEntry("dir")).kind == "file")
    if not tasks:
        where = f"below {order.request.path!r}" if order.request.path.strip("/") else "below its top"
        text = f"{order.request.location.partition('?')[0]} has no tasks: no directory directly {where} has a task.toml"
        raise SourceError(text, reason=NOT_FOUND)
    for name in tasks:
        if not name.isprintable() or len(name) > _NAME_CHARACTERS:
            raise SourceError(f"the directory {name!r} cannot name a task: at most {_NAME_CHARACTERS} printable characters can")
    return FetchResult(revision, "", tasks=tuple(_written(file.parent, name, directories[name]) for name in tasks))


def _written(directory: Path, name: str, entries: dict[str, BundleEntry]) -> FetchedTask:
    with OutputFile(directory) as output:
        write_tar(output, sorted(entries.items()))
    return FetchedTask(name, output.digest, output.path.name)
