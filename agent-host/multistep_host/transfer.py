"""Packs and unpacks the tar archives of uploads and downloads."""

from __future__ import annotations

import logging
import tarfile
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import IO

from harbor.environments.base import transfer_tar_filter

_log = logging.getLogger(__name__)


def pack_file(archive: IO[bytes], source: Path, name: str) -> None:
    """Write an archive with one file under this name. A symbolic link is followed."""
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.PAX_FORMAT, dereference=True) as tar:
        tar.add(source, arcname=name, recursive=False)
    archive.seek(0)


def pack_directory(archive: IO[bytes], source: Path) -> None:
    """Write an archive with the contents of the directory."""
    _pack(archive, source, sorted(source.iterdir()), recursive=True)


def pack_files(archive: IO[bytes], source: Path, files: Iterable[Path]) -> None:
    """Write an archive with `files`, which are in the directory `source`."""
    _pack(archive, source, files, recursive=False)


def _pack(archive: IO[bytes], source: Path, paths: Iterable[Path], *, recursive: bool) -> None:
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in paths:
            tar.add(path, arcname=str(path.relative_to(source)), recursive=recursive)
    archive.seek(0)


def unpack_file(archive: IO[bytes], target: Path) -> None:
    """Write the only member of a download to `target`."""
    archive.seek(0)
    with tarfile.open(fileobj=archive) as tar:
        member = tar.next()
        content = tar.extractfile(member) if member else None
        if content is None:
            raise RuntimeError("the download contains no file")
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as file:
            while block := content.read(1 << 20):
                file.write(block)


def unpack_directory(archive: IO[bytes], target: Path, keep: Collection[Path] = ()) -> set[Path]:
    """Unpack a download below `target`, without overwriting the files in `keep`. Return the paths of the written files.

    The members are named `0/PATH`. The environment may be hostile, so Harbor's filter rejects members that lead out of the
    directory. Only the rejected members are skipped, so that a bad link does not prevent the download of the agent's other logs.
    """
    archive.seek(0)
    target.mkdir(parents=True, exist_ok=True)
    written = set()
    with tarfile.open(fileobj=archive) as tar:
        for member in tar:
            member.name = member.name.partition("/")[2]
            if not member.name.strip("/") or target / member.name in keep:
                continue
            try:
                tar.extract(member, target, filter=transfer_tar_filter)
                written.add(target / member.name)
            except (tarfile.FilterError, OSError) as error:
                _log.warning("a downloaded file is left out: %s", error)
    return written
