"""Writes, walks and deletes untrusted directory trees. Links are never followed.

Each directory is opened by its name, relative to its parent and with O_NOFOLLOW, so no path leads out of the tree.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from errno import EILSEQ, EINVAL, ELOOP, ENAMETOOLONG, ENOTDIR

from multistep.api.common.safe_paths import leads_out
from multistep.store.files.known_digests import LARGE_BYTES, digest_line
from multistep.store.files.read_tar import TarMember

MAX_DEPTH = 128
MAX_PATH_BYTES = 2048  # maximum length of a path below the tree's top. The system's limit also counts the path of the top
CHUNK_BYTES = 1024 * 1024

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_UNWRITABLE_NAME = frozenset({ENAMETOOLONG, EILSEQ, EINVAL, ELOOP})


class SkippedMember(Exception):
    """A tar member cannot or must not be written. The message is the reason."""


@dataclass(frozen=True)
class TreeEntry:
    """An entry that ``walk`` found."""

    path: str
    """Path below the tree's top."""
    parent: int
    """File descriptor of the entry's directory."""
    name: str
    info: os.stat_result
    """Result of lstat."""

    def open(self) -> int:
        """Return a file descriptor to read a regular file."""
        return os.open(self.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self.parent)

    def link_target(self) -> str:
        """Return the target of a symbolic link."""
        return os.readlink(self.name, dir_fd=self.parent)


def walk(top: str | os.PathLike[str], *, hidden: bool = True) -> Iterator[TreeEntry]:
    """Yield every entry below a directory. A directory comes before its contents, and the entries of one directory are sorted by
    name. Entries that are deleted during the walk are skipped.

    Without ``hidden``, names at the top that start with a dot are skipped.
    """
    levels = [_Level.open(os.open(top, _DIRECTORY), "")]
    try:
        while levels:
            name = levels[-1].next()
            if name is None:
                levels.pop().close()
            elif hidden or len(levels) > 1 or not name.startswith("."):
                yield from _enter(levels, name)
    finally:
        for level in levels:
            level.close()


def _enter(levels: list[_Level], name: str) -> Iterator[TreeEntry]:
    level = levels[-1]
    try:
        entry = TreeEntry(level.prefix + name, level.fd, name, os.stat(name, dir_fd=level.fd, follow_symlinks=False))
        yield entry
        if stat.S_ISDIR(entry.info.st_mode):
            levels.append(_Level.open(os.open(name, _DIRECTORY, dir_fd=level.fd), f"{entry.path}/"))
    except (FileNotFoundError, NotADirectoryError):
        return


@dataclass
class _Level:
    """One directory that ``walk`` has open."""

    fd: int
    prefix: str
    names: Iterator[str]

    @classmethod
    def open(cls, fd: int, prefix: str) -> _Level:
        return cls(fd, prefix, iter(sorted(os.listdir(fd))))

    def next(self) -> str | None:
        return next(self.names, None)

    def close(self) -> None:
        os.close(self.fd)


def open_below(top: str | os.PathLike[str], path: str) -> int:
    """Return a file descriptor of the regular file at a relative path, without following links."""
    *parents, name = path.split("/")
    fd = os.open(top, _DIRECTORY)
    for parent in parents:
        try:
            below = os.open(parent, _DIRECTORY, dir_fd=fd)
        finally:
            os.close(fd)
        fd = below
    try:
        return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=fd)
    finally:
        os.close(fd)


def pread_all(fd: int, offset: int, size: int) -> Iterator[bytes]:
    """Yield ``size`` bytes of a file from ``offset`` on, in chunks. Stop if the file ends before."""
    while size > 0 and (chunk := os.pread(fd, min(size, CHUNK_BYTES), offset)):
        yield chunk
        offset += len(chunk)
        size -= len(chunk)


def write_all(fd: int, data: bytes) -> None:
    """Write all data, in as many calls as needed."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


class TreeWriter:
    """Writes a tar stream's members below a directory. The later of two members with the same path replaces the earlier one.

    ``digests`` collects the lines of the written large files for store.files.known_digests.
    """

    def __init__(self, top: str | os.PathLike[str]) -> None:
        self.digests: list[bytes] = []
        self._top = os.open(top, _DIRECTORY)
        # The open directory of the last member, because successive members are often in one directory.
        self._parent: tuple[tuple[str, ...], int] | None = None

    def __enter__(self) -> TreeWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._close_parent()
        os.close(self._top)

    def add(self, path: str, member: TarMember, source: int) -> None:
        """Write one tar member at a relative path. ``source`` is the file descriptor of the tar. Raises SkippedMember or
        OSError."""
        parts = safe_parts(path)
        if member.kind == "other":
            raise SkippedMember("neither a file nor a directory nor a symbolic link")
        try:
            self._add(parts, member, source)
        except OSError as error:
            if error.errno in _UNWRITABLE_NAME:
                raise SkippedMember(f"the volume does not support its name or target: {error.strerror}") from None
            raise

    def _add(self, parts: tuple[str, ...], member: TarMember, source: int) -> None:
        if member.kind == "directory":
            return self._directory(parts, member)
        if not parts:
            raise SkippedMember("its place must be a directory")
        parent, name = self._open_parent(parts[:-1]), parts[-1]
        if member.kind == "link":
            return self._replacing(parent, name, lambda: os.symlink(member.target, name, dir_fd=parent))
        return self._replacing(parent, name, lambda: self._write_file(parent, name, member, source))

    def _directory(self, parts: tuple[str, ...], member: TarMember) -> None:
        fd = self._open_parent(parts)
        if parts:
            os.fchmod(fd, member.mode | stat.S_IRWXU)

    def _replacing(self, parent: int, name: str, make: Callable[[], None]) -> None:
        try:
            make()
        except FileExistsError:
            self._delete(parent, name)
            make()

    def _write_file(self, parent: int, name: str, member: TarMember, source: int) -> None:
        digest = hashlib.sha256() if member.size >= LARGE_BYTES else None
        fd = os.open(name, _NEW_FILE, 0o600, dir_fd=parent)
        try:
            for chunk in pread_all(source, member.offset, member.size):
                write_all(fd, chunk)
                if digest is not None:
                    digest.update(chunk)
            os.fchmod(fd, _owner_mode(member.mode))
            os.utime(fd, (member.mtime, member.mtime))
            if digest is not None:
                self.digests.append(digest_line(os.fstat(fd), digest.hexdigest()))
        finally:
            os.close(fd)

    def _delete(self, parent: int, name: str) -> None:
        info = os.stat(name, dir_fd=parent, follow_symlinks=False)
        if stat.S_ISDIR(info.st_mode):
            shutil.rmtree(name, dir_fd=parent)
        else:
            os.unlink(name, dir_fd=parent)

    def _open_parent(self, parts: tuple[str, ...]) -> int:
        if self._parent is not None and self._parent[0] == parts:
            return self._parent[1]
        self._close_parent()
        fd = os.dup(self._top)
        for part in parts:
            try:
                below = self._open_directory(fd, part)
            finally:
                os.close(fd)
            fd = below
        self._parent = (parts, fd)
        return fd

    def _open_directory(self, parent: int, name: str) -> int:
        try:
            return os.open(name, _DIRECTORY, dir_fd=parent)
        except FileNotFoundError:
            pass
        except OSError as error:  # a link or a file has the directory's name
            if error.errno not in (ENOTDIR, ELOOP):
                raise
            self._delete(parent, name)
        os.mkdir(name, 0o755, dir_fd=parent)
        return os.open(name, _DIRECTORY, dir_fd=parent)

    def _close_parent(self) -> None:
        if self._parent is not None:
            os.close(self._parent[1])
            self._parent = None


def safe_parts(path: str) -> tuple[str, ...]:
    """Return the names in a path, which are () for the tree's top. Raises SkippedMember if the path leads out of the tree or is too
    long."""
    if leads_out(path):
        raise SkippedMember("its path leads out of the results")
    parts = tuple(part for part in path.split("/") if part not in ("", "."))
    if len(parts) > MAX_DEPTH or len(os.fsencode(path)) > MAX_PATH_BYTES:
        raise SkippedMember(f"its path is longer than {MAX_PATH_BYTES} bytes or {MAX_DEPTH} directories")
    return parts


def _owner_mode(mode: int) -> int:
    """Return the mode with read and write permission for the owner (the operator), and execute permission if anyone has it."""
    return mode | stat.S_IRUSR | stat.S_IWUSR | (stat.S_IXUSR if mode & 0o111 else 0)
