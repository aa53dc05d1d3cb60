"""Generate and inspect tar streams for uploads and downloads that are too large to hold in memory."""

from __future__ import annotations

import hashlib
import io
import random
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

CHUNK_BYTES = 1024 * 1024
Facts = dict[str, tuple[bytes, int, int, str, str]]  # name -> type, mode, size, sha256, link


def one_large_file(name: str, size: int) -> Iterator[bytes]:
    """Yield a tar stream with one file of random bytes."""
    member = tarfile.TarInfo(name)
    member.size, member.mode = size, 0o640
    yield member.tobuf(tarfile.PAX_FORMAT)
    source = random.Random(size)
    for start in range(0, size, CHUNK_BYTES):
        yield source.randbytes(min(CHUNK_BYTES, size - start))
    yield bytes(-size % 512 + 1024)


def many_small_files(count: int) -> Iterator[bytes]:
    """Yield a tar stream with files of a few bytes, a hundred in each directory."""
    for number in range(count):
        if number % 100 == 0:
            directory = tarfile.TarInfo(f"d{number // 100}")
            directory.type, directory.mode = tarfile.DIRTYPE, 0o755
            yield directory.tobuf(tarfile.PAX_FORMAT)
        data = f"file {number}\n".encode()
        member = tarfile.TarInfo(f"d{number // 100}/f{number}")
        member.size, member.mode = len(data), 0o644
        yield member.tobuf(tarfile.PAX_FORMAT) + data.ljust(512, b"\0")
    yield bytes(1024)


def odd_files() -> bytes:
    """Return a tar file with unusual names, contents, modes and file types."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, mode, data in (
            ("a b", 0o644, b"\0\xff\r\n"),
            ("quote\"'`$( )", 0o755, b""),
            ("new\nline", 0o600, b"x" * 511),
            ("größe/漢字 🎉", 0o444, b"y" * 512),
            ("-rf", 0o4755 & 0o777, bytes(range(256)) * 5),
            ("deep/" * 40 + "end", 0o640, b"z" * 513),
            (".hidden/.file", 0o644, b"\xef\xbb\xbf"),
        ):
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(data), mode
            tar.addfile(member, io.BytesIO(data))
        for name, target in (("link", "a b"), ("dangling", "nowhere"), ("absolute", "/etc/hostname"), ("größe/up", "../a b")):
            member = tarfile.TarInfo(name)
            member.type, member.linkname, member.mode = tarfile.SYMTYPE, target, 0o777
            tar.addfile(member)
        for name, mode in (("empty", 0o755), ("empty/inside", 0o700)):
            member = tarfile.TarInfo(name)
            member.type, member.mode = tarfile.DIRTYPE, mode
            tar.addfile(member)
    return out.getvalue()


def facts(file: Path, prefix: str = "") -> Facts:
    """Return the facts of the tar entries whose names start with `prefix`, by the rest of the name."""
    found: Facts = {}
    with tarfile.open(file) as tar:
        for member in tar:
            name = member.name.removeprefix(prefix).strip("/")
            if name and member.name.startswith(prefix):
                data = tar.extractfile(member) if member.isreg() else None
                digest = _sha256(data) if data else ""
                found[name] = (member.type, member.mode, member.size, digest, member.linkname)
    return found


def _sha256(file: IO[bytes]) -> str:
    digest = hashlib.sha256()
    while chunk := file.read(CHUNK_BYTES):
        digest.update(chunk)
    return digest.hexdigest()
