"""Logs of builds on the results volume: ``root/.builds/BUILD.log``, where BUILD is the digest of the build's inputs."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from multistep.store.trial.disk_calls import Disk

MAX_BYTES: Final = 16 << 20
_BUILD = re.compile(r"[0-9a-f]{64}")


class BuildLogs:
    """The logs of all builds. Each call is idempotent."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._directory = disk.root / ".builds"

    async def write(self, build: str, offset: int, data: bytes) -> None:
        """Write a part of a log, and truncate the log after it, because later bytes are from an earlier pod of the build. Ignore
        a part that ends beyond MAX_BYTES."""
        if offset + len(data) <= MAX_BYTES:
            await self._disk.of_root(lambda: self._write(self._path(build), offset, data))

    async def exists(self, build: str) -> bool:
        """Return whether this build has a log."""
        return await self._disk.of_root(self._path(build).exists)

    async def part(self, build: str, offset: int, limit: int) -> bytes | None:
        """Return at most limit bytes of a log; None if it does not exist."""
        if not _BUILD.fullmatch(build):
            return None
        return await self._disk.of_root(lambda: _read(self._path(build), offset, limit))

    async def remove_older(self, before: float) -> int:
        """Delete the logs that were last written before a time (seconds since the epoch); return their number."""
        return await self._disk.of_root(lambda: _remove(self._directory, before))

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


def _remove(directory: Path, before: float) -> int:
    old = [each for each in directory.glob("*.log") if each.stat().st_mtime < before]
    for each in old:
        each.unlink(missing_ok=True)
    return len(old)
