"""Unpacks an untrusted tar, whose files agents created. Never writes outside the target directory.

Symbolic links are created last and unchanged, so that no write follows a link. Mode bits other than rwx are dropped. Members that
are neither file, directory nor link, or whose path leads out of the directory, are skipped and reported.
"""

from __future__ import annotations

import errno
import shutil
import tarfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from multistep.api.common.safe_paths import leads_out
from multistep.errors import StoreError

IN_MEMORY_BYTES = 16 << 20  # a larger archive is buffered in a temporary file
_MODE_BITS = 0o777
_OWNER_FILE, _OWNER_DIRECTORY = 0o600, 0o700  # mode bits that are always set, so that the user can read and delete the files
_IMPOSSIBLE_NAMES = frozenset({errno.ENAMETOOLONG, errno.EILSEQ, errno.EINVAL})


@dataclass
class Unpacked:
    """The result of unpacking."""

    files: int = 0
    bytes: int = 0
    left_out: list[tuple[str, str]] = field(default_factory=list)
    """Name of each skipped member, with the reason."""


class _LeaveOut(Exception):
    """Raised to skip a member; the text is the reason."""


def unpack(file: IO[bytes], directory: Path, *, compressed: bool = True) -> Unpacked:
    """Unpack a tar into a directory, which is created if it does not exist.

    compressed: whether to accept a compressed tar, whose files may be much larger than the tar. Raises StoreError if the tar is
    incomplete or the files cannot be written.
    """
    found = Unpacked()
    links: list[tarfile.TarInfo] = []
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tarfile.open(fileobj=file, mode="r:*" if compressed else "r:") as tar:
            for member in tar:
                if member.issym():
                    links.append(member)
                else:
                    _attempt(found, member, lambda each: _write(tar, each, directory, found))
        for link in links:
            _attempt(found, link, lambda each: _link(each, directory))
    except (tarfile.TarError, EOFError, zlib.error, ValueError, OverflowError) as error:
        raise StoreError(f"the results are not a whole tar file: {error}") from error
    except OSError as error:
        raise StoreError(f"results cannot be written to {directory}: {error}") from error
    return found


def _attempt(found: Unpacked, member: tarfile.TarInfo, act: Callable[[tarfile.TarInfo], None]) -> None:
    try:
        act(member)
    except _LeaveOut as reason:
        found.left_out.append((member.name, str(reason)))
    except OSError as error:
        if error.errno not in _IMPOSSIBLE_NAMES:
            raise
        found.left_out.append((member.name, error.strerror or "its name is impossible here"))


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, directory: Path, found: Unpacked) -> None:
    if member.isdir():
        place = _directory(directory, _parts(member.name))
        place.chmod(member.mode & _MODE_BITS | _OWNER_DIRECTORY)
        return
    place = _free_place(member.name, directory)
    with _content(tar, member) as source, place.open("xb") as out:
        shutil.copyfileobj(source, out)
        found.bytes += out.tell()
    place.chmod(member.mode & _MODE_BITS | _OWNER_FILE)
    found.files += 1


def _link(member: tarfile.TarInfo, directory: Path) -> None:
    if not member.linkname or "\0" in member.linkname:
        raise _LeaveOut("it is a link to nothing")
    _free_place(member.name, directory).symlink_to(member.linkname)


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    """Return the content of a file, or of the file in the tar that a hard link names."""
    source = None
    if (member.isreg() and not member.issparse()) or member.islnk():
        try:
            source = tar.extractfile(member)
        except (KeyError, RecursionError):
            raise _LeaveOut("it is a hard link to nothing") from None
    if source is None:
        raise _LeaveOut("it is neither a file nor a directory nor a link")
    return source


def _parts(name: str) -> list[str]:
    if leads_out(name):
        raise _LeaveOut("its name leads out of the directory")
    return [part for part in name.split("/") if part not in ("", ".")]


def _free_place(name: str, directory: Path) -> Path:
    """Return the path for a new file or link. Delete an existing file at this path, and create missing parent directories."""
    parts = _parts(name)
    if not parts:
        raise _LeaveOut("it has no name")
    place = _directory(directory, parts[:-1]) / parts[-1]
    if place.is_dir() and not place.is_symlink():
        raise _LeaveOut("a directory of this name exists")
    place.unlink(missing_ok=True)
    return place


def _directory(directory: Path, parts: list[str]) -> Path:
    """Return the directory ``parts`` below ``directory``, created if missing. Raises _LeaveOut if a part is a link or a file."""
    place = directory
    for part in parts:
        place = place / part
        if place.is_symlink() or (place.exists() and not place.is_dir()):
            raise _LeaveOut(f"{part!r} on its way is not a directory")
        place.mkdir(exist_ok=True)
    return place
