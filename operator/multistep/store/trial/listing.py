"""Lists results, and reads files or parts of files. The functions block."""

from __future__ import annotations

import os
import stat
import tarfile
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from multistep.api.common.safe_paths import leads_out
from multistep.store.files.file_trees import TreeEntry, open_below, pread_all, walk

_BATCH = 100


@dataclass(frozen=True)
class ResultEntry:
    """A file, directory or link of a trial's results."""

    path: str
    info: os.stat_result
    """Result of lstat."""
    target: str = ""
    """Target of a link, otherwise ""."""


def entry_batches(top: Path) -> Generator[list[ResultEntry], None, None]:
    batch: list[ResultEntry] = []
    for entry in walk(top, hidden=False):
        batch.append(_found(entry))
        if len(batch) == _BATCH:
            yield batch
            batch = []
    yield batch


def _found(entry: TreeEntry) -> ResultEntry:
    is_link = stat.S_ISLNK(entry.info.st_mode)
    return ResultEntry(entry.path, entry.info, entry.link_target() if is_link else "")


def file_chunks(top: Path, path: str) -> Generator[bytes, None, None]:
    fd = open_below(top, path)
    try:
        yield from pread_all(fd, 0, os.fstat(fd).st_size)
    finally:
        os.close(fd)


def is_result(path: str) -> bool:
    """Return whether a path can be that of a result. It must stay below the trial directory, and not start with a dot."""
    return not (leads_out(path) or "" in path.split("/") or path.startswith("."))


def read_part(top: Path, path: str, offset: int, limit: int) -> bytes | None:
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


CHUNK_BYTES = 256 * 1024
TAR_END = bytes(2 * tarfile.BLOCKSIZE)


def tar_chunks(top: Path) -> Generator[bytes, None, None]:
    """Yield a tar stream of a directory, without the hidden files at its top and without owners. Paths are relative to the
    directory."""
    return _joined(_pieces(top))


def picked_chunks(top: Path, names: Mapping[str, str]) -> Generator[bytes, None, None]:
    """Yield a tar of selected files. As in Harbor 0.26, it has no links to targets outside of the tar.

    ``names`` maps each selected path to its name in the tar.
    """
    return _joined(_picked_pieces(top, names))


def _picked_pieces(top: Path, names: Mapping[str, str]) -> Iterator[bytes]:
    for entry in walk(top):
        name = names.get(entry.path)
        if name and not (stat.S_ISLNK(entry.info.st_mode) and _leads_out(name, entry.link_target())):
            yield from _member(entry, name)
    yield TAR_END


def _leads_out(name: str, target: str) -> bool:
    """Return whether a link may lead out of the tar. This includes a target with ``..`` after a name, because the name may be a
    link."""
    parts = [part for part in target.split("/") if part not in ("", ".")]
    up = len(list(takewhile(lambda part: part == "..", parts)))
    return target.startswith("/") or up > name.count("/") or ".." in parts[up:]


def _pieces(top: Path) -> Iterator[bytes]:
    for entry in walk(top, hidden=False):
        yield from _member(entry, entry.path)
    yield TAR_END


def _member(entry: TreeEntry, name: str) -> Iterator[bytes]:
    if stat.S_ISDIR(entry.info.st_mode):
        yield _header(entry, name, tarfile.DIRTYPE)
    elif stat.S_ISLNK(entry.info.st_mode):
        yield _header(entry, name, tarfile.SYMTYPE, target=entry.link_target())
    elif stat.S_ISREG(entry.info.st_mode):
        yield from _file(entry, name)


def _file(entry: TreeEntry, name: str) -> Iterator[bytes]:
    try:
        fd = entry.open()
    except FileNotFoundError:
        return
    try:
        size = os.fstat(fd).st_size
        yield _header(entry, name, tarfile.REGTYPE, size=size)
        sent = 0
        for chunk in pread_all(fd, 0, size):
            sent += len(chunk)
            yield chunk
        yield from _zeros(size - sent)  # if the file has shrunk, pad it to the size in its header
        yield tar_padding(size)
    finally:
        os.close(fd)


def _zeros(size: int) -> Iterator[bytes]:
    while size > 0:
        yield bytes(min(size, CHUNK_BYTES))
        size -= CHUNK_BYTES


def _header(entry: TreeEntry, name: str, kind: bytes, *, size: int = 0, target: str = "") -> bytes:
    return tar_header(name, kind, stat.S_IMODE(entry.info.st_mode), int(entry.info.st_mtime), size=size, target=target)


def tar_header(name: str, kind: bytes, mode: int, mtime: int, *, size: int = 0, target: str = "") -> bytes:
    """Return a tar member's header. ``mtime`` is in seconds since the epoch. ``tar_padding`` must follow a file's contents."""
    info = tarfile.TarInfo(name)
    info.type, info.size, info.linkname = kind, size, target
    info.mode, info.mtime = mode, mtime
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def tar_padding(size: int) -> bytes:
    """Return the zeros that pad a file of ``size`` bytes to a multiple of 512."""
    return bytes(-size % tarfile.BLOCKSIZE)


def _joined(pieces: Iterable[bytes]) -> Generator[bytes, None, None]:
    """Yield small pieces joined into chunks, so that a small file does not need two writes."""
    held, size = [], 0
    for piece in pieces:
        held.append(piece)
        size += len(piece)
        if size >= CHUNK_BYTES:
            yield b"".join(held)
            held, size = [], 0
    if held:
        yield b"".join(held)
