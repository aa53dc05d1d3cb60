"""Caches the digests of a trial's large files, so that a file that was hashed while it was written is not read again.

A hidden file on the volume has a line for each large file, with inode number, size, times and SHA-256. No line matches a file that
was written or replaced since, because its inode number or change time is different. The functions block.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Final

NOTE: Final = "digests"
"""Name of the hidden file with the digests (TrialDirectory.note)."""
LARGE_BYTES: Final = 1024 * 1024
"""Minimum size of a file whose digest is cached. Smaller files are read again."""

_CHUNK_BYTES = 1024 * 1024
_LINE = re.compile(rb"(\d+ \d+ -?\d+ -?\d+) ([0-9a-f]{64})")


def digest_line(info: os.stat_result, sha256: str) -> bytes:
    """Return the line that stores a file's digest. ``info`` is the file's status after its last byte was written or read."""
    return b"%s %s\n" % (_identity(info), sha256.encode())


def _identity(info: os.stat_result) -> bytes:
    return b"%d %d %d %d" % (info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns)


class KnownDigests:
    """The cached digests of one trial. ``notes`` has the stored lines. ``new`` collects the lines to store."""

    def __init__(self, notes: bytes) -> None:
        self.new: list[bytes] = []
        matches = (_LINE.fullmatch(line) for line in notes.splitlines())  # a crash may have left half a line
        self._known = {match[1]: match[2].decode() for match in matches if match}

    def sha256(self, fd: int) -> tuple[str, int]:
        """Return the SHA-256 and the size of an open file. Read the file only if its digest is not cached."""
        info = os.fstat(fd)
        if (known := self._known.get(_identity(info))) is not None:
            return known, info.st_size
        sha256, size = read_sha256(fd)
        if size >= LARGE_BYTES and size == info.st_size:
            self.new.append(digest_line(info, sha256))
        return sha256, size


def read_sha256(fd: int) -> tuple[str, int]:
    """Read an open file from its start. Return its SHA-256 and the number of bytes."""
    digest, size = hashlib.sha256(), 0
    while chunk := os.pread(fd, _CHUNK_BYTES, size):
        digest.update(chunk)
        size += len(chunk)
    return digest.hexdigest(), size


class StreamDigest:
    """Computes size and SHA-256 of the chunks that pass through ``of``."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self.size = 0

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()

    async def of(self, chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        """Yield the chunks unchanged, and count and hash them."""
        async for chunk in chunks:
            self._hash.update(chunk)
            self.size += len(chunk)
            yield chunk
