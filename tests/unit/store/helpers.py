"""Create tars as valid and hostile runners send them, unpack them on a results volume, and read the results."""

from __future__ import annotations

import io
import os
import stat
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from multistep.api.task.task_toml import ArtifactConfig
from multistep.engine.journal.journal import Collected
from multistep.store.files.trial_key import TrialKey
from multistep.store.results_volume import ResultsVolume

KEY = TrialKey("default", "trial-1", "0b5b3c9e-6d1f-4c0e-9b4e-1d1c6f1b2a3c")
_HEADER_ONLY = (tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE)


@dataclass(frozen=True)
class Step:
    """The attributes of a step that the results volume uses."""

    name: str = "one"
    directory: str | None = "one"
    artifacts: tuple[ArtifactConfig, ...] = ()
    index: int = 0


def member(name: str, data: bytes = b"", kind: bytes = tarfile.REGTYPE, mode: int = 0o644, target: str = "") -> bytes:
    """Return one tar member: its header and its padded contents."""
    info = tarfile.TarInfo()
    info.name, info.type, info.mode, info.linkname = name, kind, mode, target
    data = b"" if kind in _HEADER_ONLY else data
    info.size = len(data)
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape") + data + bytes(-len(data) % 512)


def tar(*members: bytes) -> bytes:
    """Return a tar of these members, with its end marker."""
    return b"".join(members) + bytes(1024)


def directory(name: str, mode: int = 0o755) -> bytes:
    """Return the tar member of a directory."""
    return member(f"{name.rstrip('/')}/", kind=tarfile.DIRTYPE, mode=mode)


def link(name: str, target: str) -> bytes:
    """Return the tar member of a symbolic link."""
    return member(name, kind=tarfile.SYMTYPE, target=target)


def entries(*sources: str) -> tuple[ArtifactConfig, ...]:
    """Return artifact entries of a task.toml that have a source only."""
    return tuple(ArtifactConfig(source=source) for source in sources)


async def keep(
    volume: ResultsVolume,
    data: bytes,
    types: Iterable[str] = ("directory", "directory"),
    step: Step = Step(),
    *,
    attempt: int = 1,
    key: TrialKey = KEY,
) -> Collected:
    """Spool a runner's download and unpack it into the step's results, as the operator does."""
    async with volume.collections.spool(key) as spool:
        for start in range(0, len(data), 70_000):
            await spool.write(data[start : start + 70_000])
        return await volume.collections.store_step(key, spool, attempt=attempt, step=step, types=tuple(types))


def trial_path(volume: ResultsVolume, key: TrialKey = KEY) -> Path:
    """Return the directory of a trial's results."""
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
