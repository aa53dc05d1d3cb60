"""Packs and reads task bundles, which are deterministic tar.gz files, identified by the SHA-256 of their bytes.

Bundles are untrusted. Paths that lead out of the task are rejected, sizes are limited, and nothing is unpacked to disk.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, Literal

from multistep.api.common.safe_paths import is_canonical
from multistep.api.trial.values import TOO_LARGE
from multistep.errors import SourceError

_CHUNK = 1 << 20
_BLOCK = 512
_MODE_BITS = 0o7777
_TYPES = {"file": tarfile.REGTYPE, "dir": tarfile.DIRTYPE, "link": tarfile.SYMTYPE}


@dataclass(frozen=True)
class BundleLimits:
    """Maximum sizes of a bundle in bytes, and its maximum number of entries."""

    compressed: int = 64 << 20
    uncompressed: int = 256 << 20
    entries: int = 50_000


DEFAULT_LIMITS = BundleLimits()


@dataclass(frozen=True)
class BundleEntry:
    """A file, directory or symbolic link."""

    kind: Literal["file", "dir", "link"]
    mode: int = 0o755
    data: bytes | memoryview = b""
    """A file's bytes, in memory or memory-mapped."""
    target: str = ""
    """The target of a link as it is written in the link."""


@dataclass(frozen=True)
class Bundle:
    """A task directory in memory."""

    digest: str
    entries: Mapping[str, BundleEntry]
    """The entries by relative path, which has no '.' or '..'. Every parent directory is an entry."""
    table: Mapping[str, Any] | None = None
    """The content of task.toml for an inline task, which has no such file."""

    @classmethod
    def from_archive(cls, data: bytes, digest: str, limits: BundleLimits = DEFAULT_LIMITS) -> Bundle:
        """Read a bundle from a tar.gz or tar. Raises SourceError if the digest differs, or if the archive is malformed or too
        large."""
        actual = digest_of(data)
        if actual != digest:
            raise SourceError(f"the bundle's digest is {actual}, not {digest}: package the task again")
        if len(data) > limits.compressed and not _is_tar(data):
            raise SourceError(f"the bundle has {len(data)} bytes, more than the limit of {limits.compressed}", reason=TOO_LARGE)
        return cls(digest, _complete(dict(read_members(io.BytesIO(data), limits))))

    @classmethod
    def from_tar(cls, plain: BinaryIO, view: memoryview, digest: str) -> Bundle:
        """Read a bundle from a tar whose digest was checked. The files are slices of ``view``, the tar's memory-mapped bytes."""
        plain.seek(0)
        return cls(digest, _complete(dict(read_members(plain, DEFAULT_LIMITS, view))))

    @classmethod
    def from_directory(cls, directory: Path) -> Bundle:
        """Return a task's directory as a bundle."""
        data, entries = _packed(directory)
        return cls(digest_of(data), entries)

    @classmethod
    def from_entries(cls, entries: Mapping[str, BundleEntry], table: Mapping[str, Any] | None = None) -> Bundle:
        """Return a bundle with these entries. The digest is that of entries and table, because there is no packed file."""
        whole = _complete(entries)
        sha = hashlib.sha256(json.dumps(table, sort_keys=True, default=str).encode())
        for chunk in tar_chunks(sorted(whole.items())):
            sha.update(chunk)
        return cls(f"sha256:{sha.hexdigest()}", whole, table)

    @cached_property
    def size(self) -> int:
        """The total bytes of all files."""
        return sum(len(entry.data) for entry in self.entries.values())

    def children(self, directory: str) -> tuple[str, ...]:
        """Return the sorted names in a directory. "" is the task's root."""
        return self._children.get(directory, ())

    @cached_property
    def _children(self) -> Mapping[str, tuple[str, ...]]:
        names: dict[str, list[str]] = {}
        for path in sorted(self.entries):
            parent, _, name = path.rpartition("/")
            names.setdefault(parent, []).append(name)
        return {parent: tuple(children) for parent, children in names.items()}


def pack_directory(directory: Path) -> bytes:
    """Return the directory as a reproducible tar.gz. Entries are sorted, and times and owners are 0. It keeps modes, links and
    empty directories."""
    return _packed(directory)[0]


def pack_entries(entries: Mapping[str, BundleEntry]) -> bytes:
    """Return the entries as a tar.gz, as ``pack_directory`` does."""
    out = io.BytesIO()
    with gzip.GzipFile(filename="", fileobj=out, mode="wb", mtime=0) as stream:
        for chunk in tar_chunks(sorted(entries.items())):
            stream.write(chunk)
    return out.getvalue()


def digest_of(data: bytes) -> str:
    """Return ``sha256:`` and the hexadecimal digest of the bytes."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def tar_chunks(entries: Iterable[tuple[str, BundleEntry]], *, mtime: int = 0) -> Iterator[bytes]:
    """Yield a PAX tar stream of the entries, in the given order. ``mtime`` is the time of every entry, in seconds since the
    epoch."""
    for path, entry in entries:
        yield from _member(path, entry, mtime)
    yield bytes(2 * _BLOCK)


def safe_path(name: str) -> str:
    """Return a tar member's path without leading './' and trailing '/'. Raises SourceError if the path could lead out of the
    task."""
    path = name.removeprefix("./").rstrip("/")
    if not is_canonical(path):
        raise SourceError(f"the path {name!r} is refused: it must be relative, without '.' and '..'")
    return path


def _member(path: str, entry: BundleEntry, mtime: int) -> Iterator[bytes]:
    info = tarfile.TarInfo(path)
    info.type = _TYPES[entry.kind]
    info.mode = entry.mode
    info.mtime = mtime
    info.size = len(entry.data)
    info.linkname = entry.target
    yield info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
    for start in range(0, len(entry.data), _CHUNK):
        yield bytes(entry.data[start : start + _CHUNK])
    if rest := len(entry.data) % _BLOCK:
        yield bytes(_BLOCK - rest)


def _packed(directory: Path) -> tuple[bytes, dict[str, BundleEntry]]:
    try:
        entries = dict(_read_directory(directory, ""))
    except OSError as error:
        raise SourceError(f"the task directory {directory} cannot be read: {error}") from error
    return pack_entries(entries), entries


def _read_directory(directory: Path, prefix: str) -> Iterator[tuple[str, BundleEntry]]:
    for item in sorted(directory.iterdir()):
        path = prefix + item.name
        if item.is_symlink():
            yield path, BundleEntry("link", 0o777, target=str(item.readlink()))
        elif item.is_dir():
            yield path, BundleEntry("dir", item.stat().st_mode & _MODE_BITS)
            yield from _read_directory(item, path + "/")
        elif item.is_file():
            yield path, BundleEntry("file", item.stat().st_mode & _MODE_BITS, data=item.read_bytes())
        else:
            raise SourceError(f"{item} is neither a file nor a directory nor a link: it cannot be part of a task")


def copy_plain(packed: BinaryIO, plain: BinaryIO, limits: BundleLimits = DEFAULT_LIMITS) -> None:
    """Copy a tar.gz or tar to ``plain``, uncompressed. Raises SourceError if ``packed`` has another format or is too large."""
    size = packed.seek(0, io.SEEK_END)
    packed.seek(0)
    start = packed.read(_BLOCK)
    packed.seek(0)
    if size > limits.compressed and not _is_tar(start):
        raise SourceError(f"the bundle has {size} bytes, more than the limit of {limits.compressed}", reason=TOO_LARGE)
    source = _Bounded(packed if _is_tar(start) else gzip.GzipFile(fileobj=packed), limits.uncompressed)
    try:
        while data := source.read(_CHUNK):
            plain.write(data)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise SourceError(f"the bundle is not a gzip file: {error}") from error


def read_members(
    stream: BinaryIO, limits: BundleLimits = DEFAULT_LIMITS, view: memoryview | None = None
) -> Iterator[tuple[str, BundleEntry]]:
    """Yield the entries of a tar.gz or tar, one at a time. Raises SourceError if the archive is malformed or too large.

    With ``view``, the bytes of an uncompressed tar, files are slices of these bytes instead of copies.
    """
    seen: set[str] = set()
    start = stream.read(_BLOCK)
    stream.seek(0)
    try:
        plain = stream if _is_tar(start) else gzip.GzipFile(fileobj=stream)
        with tarfile.open(fileobj=_Bounded(plain, limits.uncompressed), mode="r|") as tar:
            for member in tar:
                if member.name.rstrip("/") in ("", ".") and member.isdir():
                    continue
                path = safe_path(member.name)
                if path in seen:
                    raise SourceError(f"the path {path!r} is twice in the bundle")
                if len(seen) >= limits.entries:
                    raise SourceError(f"the bundle has more than {limits.entries} entries, which is the limit", reason=TOO_LARGE)
                seen.add(path)
                yield path, _entry(tar, member, view)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise SourceError(f"the bundle is not a gzip file: {error}") from error
    except (tarfile.TarError, ValueError, RecursionError) as error:
        raise SourceError(f"the bundle is not a tar file: {error}") from error


class _Bounded(io.RawIOBase):
    """A stream that raises SourceError when more than ``most`` bytes are read."""

    def __init__(self, stream: Any, most: int) -> None:
        self._stream = stream
        self._most = most
        self._left = most

    def read(self, size: int = -1) -> bytes:
        data: bytes = self._stream.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise SourceError(
                f"the bundle has more than {self._most} bytes when uncompressed, which is the limit", reason=TOO_LARGE
            )
        return data


def _is_tar(data: bytes) -> bool:
    return data[257:262] == b"ustar"


def _entry(tar: tarfile.TarFile, member: tarfile.TarInfo, view: memoryview | None) -> BundleEntry:
    mode = member.mode & _MODE_BITS
    if member.isdir():
        return BundleEntry("dir", mode)
    if member.issym():
        return BundleEntry("link", 0o777, target=member.linkname)
    source = tar.extractfile(member) if member.type in (tarfile.REGTYPE, tarfile.AREGTYPE) else None
    if source is None or member.issparse():
        raise SourceError(f"{member.name!r} in the bundle is neither a file nor a directory nor a symbolic link")
    content = source.read() if view is None else view[member.offset_data : member.offset_data + member.size]
    if len(content) != member.size:
        raise SourceError(f"the bundle ends within {member.name!r}")
    return BundleEntry("file", mode, data=content)


def _complete(entries: Mapping[str, BundleEntry]) -> dict[str, BundleEntry]:
    """Return the entries and their missing parent directories. Raises SourceError if a parent is not a directory."""
    whole = dict(entries)
    for path in entries:
        parent = path.rpartition("/")[0]
        while parent:
            if whole.setdefault(parent, BundleEntry("dir")).kind != "dir":
                raise SourceError(f"the path {path!r} is refused: {parent!r} is not a directory")
            parent = parent.rpartition("/")[0]
    return whole
