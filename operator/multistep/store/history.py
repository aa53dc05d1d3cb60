"""The history: a line of JSON for each finished trial, which stays when the trial, its sweep and its results are deleted.

``add`` writes a trial's line to a file of its own on the volume, below ``.history/namespace=N/date=D/GROUP/``, before the trial's
status shows that it finished. ``pack`` moves the lines of a group, which are the trials of a sweep or the other trials of an hour,
to ``namespace=N/date=D/GROUP.jsonl.gz``: below ``_history/`` in the object store if there is one, otherwise on the volume.

Names depend only on the trial, so a repeated ``add`` or ``pack`` replaces a line and never doubles it. A file of a line is deleted
after the pack with this line is stored. A crash between the two leaves the line in both places, for readers to take once.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Final, Protocol

from multistep.errors import StoreError
from multistep.store.bucket.object_store import Bucket
from multistep.store.files.history_pack import DAMAGED, MAX_BYTES, packed, unpacked
from multistep.store.files.trial_key import TrialKey
from multistep.store.results_volume import ResultsVolume
from multistep.store.trial import directory

PACK_ROWS: Final = 5_000  # maximum number of a sweep's trials in a pack, which bounds the memory of a merge
_TOP, _PREFIX, _END = ".history", "_history", ".jsonl.gz"
_NAME = re.compile(r"date=\d{4}-\d\d-\d\d/[A-Za-z0-9][A-Za-z0-9-]{0,80}\.jsonl\.gz")
_MAX_OPEN_BYTES = 64 << 20


@dataclass(frozen=True)
class Place:
    """Where the history has a trial's line."""

    key: TrialKey
    created: date
    """The day on which the trial was created (UTC)."""
    group: str
    """Name of the pack, without its ending."""


@dataclass(frozen=True)
class Pack:
    """A file with lines of the history."""

    name: str
    """date=D/GROUP.jsonl.gz"""
    version: str
    """Changes with the contents."""
    size: int
    """Size in bytes, compressed."""


class _Packs(Protocol):
    """The files with the packs. A path is namespace=N/NAME. Every method may raise StoreError."""

    def stored(self, prefix: str) -> AsyncIterator[Pack]:
        """Yield the packs whose paths start with a directory. Their names are paths."""

    async def read(self, path: str) -> tuple[bytes, str | None]:
        """Return a pack's contents and version, b"" and None if it does not exist. Raises StoreError for more than MAX_BYTES."""

    async def write(self, path: str, data: bytes, former: str | None) -> None:
        """Replace the pack of this version, None if it did not exist. Raises StoreError if it has another version."""

    async def remove(self, path: str) -> None:
        """Delete a pack."""


class History:
    """The history of all namespaces. Packs are in ``bucket``, or without one on the volume. ``volume`` has the other lines."""

    def __init__(self, volume: ResultsVolume, bucket: Bucket | None = None) -> None:
        self._disk = volume.disk
        self._root = volume.root / _TOP
        self._packs: _Packs = _VolumePacks(volume, self._root) if bucket is None else _BucketPacks(bucket)

    async def add(self, place: Place, line: bytes) -> None:
        """Store the line of a finished trial, or replace it. Raises StoreError."""
        path = self._root / _partition(place.key.namespace, place.created) / place.group / f"{place.key.uid}.json"
        await self._disk.run(place.key, "writing the history", lambda to: _write(to, path, line))

    async def namespaces(self) -> list[str]:
        """Return the namespaces that have lines on the volume, or had some since it was created."""
        return await self._disk.of_root(lambda: sorted(path.name.partition("=")[2] for path in self._root.glob("namespace=*")))

    async def groups(self) -> list[Path]:
        """Return the directories with lines on the volume."""
        return await self._disk.of_root(lambda: sorted(each for each in self._root.glob("*/*/*") if each.is_dir()))

    def namespace_of(self, group: Path) -> str:
        """Return the namespace of a directory with lines."""
        return group.relative_to(self._root).parts[0].partition("=")[2]

    async def pack(self, group: Path, before: float) -> int:
        """Move a group's lines that were written before a time (seconds since the epoch) to its pack, and return their number."""
        found = await self._disk.of_root(lambda: _old_lines(group, before))
        if not found:
            return 0
        path = f"{group.relative_to(self._root).as_posix()}{_END}"
        data, version = await self._packs.read(path)
        merged = await self._disk.of_root(lambda: _merged(data, found))
        await self._packs.write(path, merged, version)
        await self._disk.of_root(lambda: _remove_lines(group, found))
        return len(found)

    async def remove_older(self, day: date) -> int:
        """Delete the packs of trials that were created before a day, and return their number."""
        old = [pack.name async for pack in self._packs.stored("") if _day(pack.name) < day.isoformat()]
        for name in old:
            await self._packs.remove(name)
        return len(old)

    async def packs(self, namespace: str) -> list[Pack]:
        """Return the packs of a namespace."""
        top = f"namespace={namespace}/"
        found = [pack async for pack in self._packs.stored(top)]
        return [Pack(pack.name.removeprefix(top), pack.version, pack.size) for pack in found]

    async def read(self, namespace: str, name: str) -> bytes | None:
        """Return a pack's contents, None if it does not exist."""
        if not _NAME.fullmatch(name):
            return None
        data, version = await self._packs.read(f"namespace={namespace}/{name}")
        return None if version is None else data

    async def open_lines(self, namespace: str) -> bytes:
        """Return the lines of a namespace that are in no pack yet, at most 64 MiB of them."""
        return await self._disk.of_root(lambda: b"".join(_open_lines(self._root / f"namespace={namespace}")))


class _VolumePacks:
    def __init__(self, volume: ResultsVolume, root: Path) -> None:
        self._disk = volume.disk
        self._root = root

    async def stored(self, prefix: str) -> AsyncIterator[Pack]:
        for pack in await self._disk.of_root(lambda: self._found(prefix)):
            yield pack

    def _found(self, prefix: str) -> list[Pack]:
        pattern = f"{prefix or '*/'}*/*{_END}"
        return [Pack(path.relative_to(self._root).as_posix(), *_version(path)) for path in sorted(self._root.glob(pattern))]

    async def read(self, path: str) -> tuple[bytes, str | None]:
        def read() -> tuple[bytes, str | None]:
            with suppress(FileNotFoundError):
                return (self._root / path).read_bytes(), _version(self._root / path)[0]
            return b"", None

        return await self._disk.of_root(read)

    async def write(self, path: str, data: bytes, former: str | None) -> None:  # noqa: ARG002 - one operator writes to its volume
        def write() -> None:
            self._disk.check()
            directory.write_file(self._root / path, data)

        await self._disk.of_root(write)

    async def remove(self, path: str) -> None:
        def remove() -> None:
            self._disk.check()
            (self._root / path).unlink(missing_ok=True)

        await self._disk.of_root(remove)


class _BucketPacks:
    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    async def stored(self, prefix: str) -> AsyncIterator[Pack]:
        async for found in self._bucket.list(f"{_PREFIX}/{prefix}".rstrip("/")):
            yield Pack(found.name.removeprefix(f"{_PREFIX}/"), found.version, found.size)

    async def read(self, path: str) -> tuple[bytes, str | None]:
        if (found := await self._bucket.head(f"{_PREFIX}/{path}")) is None:
            return b"", None
        if found.size > MAX_BYTES:
            raise StoreError(f"the pack {found.name} of the history has more than {MAX_BYTES} bytes")
        async with aclosing(self._bucket.get(found.name, found.version)) as chunks:
            return b"".join([chunk async for chunk in chunks]), found.version

    async def write(self, path: str, data: bytes, former: str | None) -> None:
        await self._bucket.put_if(f"{_PREFIX}/{path}", data, former)

    async def remove(self, path: str) -> None:
        await self._bucket.delete([f"{_PREFIX}/{path}"])


_Line = tuple[str, bytes, tuple[int, int]]
"""Name of a line's file, its contents, and its inode and time of change, which differ after the line was replaced."""


def _partition(namespace: str, created: date) -> str:
    return f"namespace={namespace}/date={created.isoformat()}"


def _day(path: str) -> str:
    return path.split("/")[1].removeprefix("date=") if path.count("/") == 2 else "9999"


def _write(to: directory.TrialDirectory, path: Path, line: bytes) -> None:
    to.check()
    directory.make_directory(path.parent)
    directory.write_file(path, line)


def _version(path: Path) -> tuple[str, int]:
    info = path.stat()
    return f"{info.st_mtime_ns}-{info.st_ino}", info.st_size


def _old_lines(group: Path, before: float) -> list[_Line]:
    found: list[_Line] = []
    for path in sorted(group.glob("*.json")):
        info = path.stat()
        if info.st_mtime < before:
            found.append((path.name, path.read_bytes(), (info.st_ino, info.st_mtime_ns)))
    return found


def _merged(pack: bytes, lines: list[_Line]) -> bytes:
    """Return the pack with these lines, in the order of the trials' UIDs, so that the same lines make the same bytes."""
    former = b"".join(unpacked(pack)).splitlines(keepends=True) if pack else []
    try:
        by_uid = {json.loads(line)["uid"]: line for line in (*former, *(line for _, line, _ in lines))}
        return packed(by_uid[uid] for uid in sorted(by_uid))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise StoreError(f"{DAMAGED}: {error}") from None


def _remove_lines(group: Path, lines: list[_Line]) -> None:
    for name, _, identity in lines:
        with suppress(FileNotFoundError):
            info = (group / name).stat()
            if (info.st_ino, info.st_mtime_ns) == identity:
                (group / name).unlink()
    with suppress(OSError):
        group.rmdir()  # fails if it has new lines


def _open_lines(top: Path) -> Iterator[bytes]:
    size = 0
    for path in sorted(top.glob("*/*/*.json")):
        with suppress(FileNotFoundError):
            line = path.read_bytes()
            size += len(line)
            if size > _MAX_OPEN_BYTES:
                return
            yield line
