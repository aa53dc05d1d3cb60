"""Lists results, and reads files or parts of them. Blocking code."""

from __future__ import annotations

import os
import stat
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

from multistep.store.files.file_trees import Entry, open_below, pread_all, walk

_BATCH = 100


@dataclass(frozen=True)
class Found:
    """A file, directory or link of a trial's results. info: result of lstat; target: target of a link, else ""."""

    path: str
    info: os.stat_result
    target: str = ""


def batches(top: Path) -> Generator[list[Found], None, None]:
    batch: list[Found] = []
    for entry in walk(top, hidden=False):
        batch.append(_found(entry))
        if len(batch) == _BATCH:
            yield batch
            batch = []
    yield batch


def _found(entry: Entry) -> Found:
    is_link = stat.S_ISLNK(entry.info.st_mode)
    return Found(entry.path, entry.info, entry.link_target() if is_link else "")


def contents(top: Path, path: str) -> Generator[bytes, None, None]:
    fd = open_below(top, path)
    try:
        yield from pread_all(fd, 0, os.fstat(fd).st_size)
    finally:
        os.close(fd)


def is_result(path: str) -> bool:
    """Return whether a path can name a result: it stays below the trial directory, and its first part has no leading dot."""
    parts = path.split("/")
    return not ("" in parts or ".." in parts or parts[0].startswith("."))


def part(top: Path, path: str, offset: int, limit: int) -> bytes | None:
    if not is_result(path):
        return None
    try:
        fd = open_below(top, path)
    except (OSError, ValueError):
        return None
    try:
        info = os.fstat(fd)
        start = offset if offset >= 0 else max(0, info.st_size + offset)
        return b"".join(pread_all(fd, start, limit)) if stat.S_ISREG(info.st_mode) else None
    finally:
        os.close(fd)
