"""A trial's directory as a tar stream (PAX, uncompressed), a chunk at a time and never following a link."""

from __future__ import annotations

import os
import stat
import tarfile
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path

from .tree import Entry, pread_all, walk

CHUNK_BYTES = 256 * 1024
_END = bytes(2 * tarfile.BLOCKSIZE)


def tar_chunks(top: Path) -> Generator[bytes, None, None]:
    """The tree below a directory, names relative to it; what is hidden at its top is left out. Owners are not told."""
    return _gathered(_pieces(top))


def _pieces(top: Path) -> Iterator[bytes]:
    for entry in walk(top, hidden=False):
        if stat.S_ISDIR(entry.info.st_mode):
            yield _header(entry, tarfile.DIRTYPE)
        elif stat.S_ISLNK(entry.info.st_mode):
            yield _header(entry, tarfile.SYMTYPE, target=os.readlink(entry.name, dir_fd=entry.parent))
        elif stat.S_ISREG(entry.info.st_mode):
            yield from _file(entry)
    yield _END


def _file(entry: Entry) -> Iterator[bytes]:
    try:
        fd = entry.open()
    except FileNotFoundError:
        return
    try:
        size = os.fstat(fd).st_size
        yield _header(entry, tarfile.REGTYPE, size=size)
        sent = 0
        for chunk in pread_all(fd, 0, size):
            sent += len(chunk)
            yield chunk
        yield from _zeros(size - sent)  # a file that shrank meanwhile keeps the size that was told
        yield bytes(-size % tarfile.BLOCKSIZE)
    finally:
        os.close(fd)


def _zeros(size: int) -> Iterator[bytes]:
    while size > 0:
        yield bytes(min(size, CHUNK_BYTES))
        size -= CHUNK_BYTES


def _header(entry: Entry, kind: bytes, *, size: int = 0, target: str = "") -> bytes:
    info = tarfile.TarInfo(entry.path)
    info.type, info.size, info.linkname = kind, size, target
    info.mode, info.mtime = stat.S_IMODE(entry.info.st_mode), int(entry.info.st_mtime)
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def _gathered(pieces: Iterable[bytes]) -> Generator[bytes, None, None]:
    """Small pieces together, so that a thousand small files are not two thousand small writes."""
    held, size = [], 0
    for piece in pieces:
        held.append(piece)
        size += len(piece)
        if size >= CHUNK_BYTES:
            yield b"".join(held)
            held, size = [], 0
    if held:
        yield b"".join(held)
