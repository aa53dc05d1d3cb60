"""Create tars as valid and hostile runners send them, and volumes to unpack them on."""

from __future__ import annotations

import io
import os
import stat
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from multistep.api.task_toml import ArtifactConfig
from multistep.engine.journal import Collected
from multistep.store.volume import TrialKey, Volume

KEY = TrialKey("default", "trial-1", "0b5b3c9e-6d1f-4c0e-9b4e-1d1c6f1b2a3c")
_HEADER_ONLY = (tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE)


@dataclass(frozen=True)
class Step:
    """The attributes of a step that a volume reads."""

    name: str = "one"
    directory: str | None = "one"
    artifacts: tuple[ArtifactConfig, ...] = ()
    index: int = 0


def member(name: str, data: bytes = b"", kind: bytes = tarfile.REGTYPE, mode: int = 0o644, target: str = "") -> bytes:
    """Return one member's header and contents."""
    info = tarfile.TarInfo()
    info.name, info.type, info.mode, info.linkname = name, kind, mode, target
    data = b"" if kind in _HEADER_ONLY else data
    info.size = len(data)
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape") + data + bytes(-len(data) % 512)


def tar(*members: bytes) -> bytes:
    """Return a whole tar."""
    return b"".join(members) + bytes(1024)


def directory(name: str, mode: int = 0o755) -> bytes:
    """Return a directory's member."""
    return member(f"{name.rstrip('/')}/", kind=tarfile.DIRTYPE, mode=mode)


def link(name: str, target: str) -> bytes:
    """Return a symbolic link's member."""
    return member(name, kind=tarfile.SYMTYPE, target=target)


def entries(*sources: str) -> tuple[ArtifactConfig, ...]:
    """Return artifact entries with only a source."""
    return tuple(ArtifactConfig(source=source) for source in sources)


async def keep(
    volume: Volume,
    data: bytes,
    types: Iterable[str] = ("directory", "directory"),
    step: Step = Step(),
    *,
    attempt: int = 1,
    key: TrialKey = KEY,
) -> Collected:
    """Spool a download and store it, as the operator does."""
    async with volume.collections.spool(key) as spool:
        for start in range(0, len(data), 70_000):
            await spool.write(data[start : start + 70_000])
        return await volume.collections.keep_step(key, spool, attempt=attempt, step=step, types=tuple(types))


def trial_path(volume: Volume, key: TrialKey = KEY) -> Path:
    """Return a trial's directory."""
    return volume.root / key.namespace / key.name / key.uid


def snapshot(top: Path) -> dict[str, tuple[str, int, bytes]]:
    """Return everything below a directory: type, mode, and contents or target, by path."""
    return {str(path.relative_to(top)): _described(path) for path in top.rglob("*")}


def _described(path: Path) -> tuple[str, int, bytes]:
    info = path.lstat()
    if stat.S_ISLNK(info.st_mode):
        return "link", 0, os.fsencode(path.readlink())
    if stat.S_ISDIR(info.st_mode):
        return "directory", stat.S_IMODE(info.st_mode), b""
    return "file", stat.S_IMODE(info.st_mode), path.read_bytes()


def opened(data: bytes) -> dict[str, tarfile.TarInfo]:
    """Return the members of a tar, read by the standard library."""
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return {info.name: info for info in archive.getmembers()}
