"""Merges those files of an image's layers that belong to the task."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import IO, Any, BinaryIO, Literal

from multistep.api.common.safe_paths import is_canonical
from multistep.api.trial.values import DIGEST
from multistep.errors import SourceError
from multistep.sources.fetch.output_file import SizeBudget
from multistep.sources.task.bundle import BundleEntry, BundleLimits

_WHITEOUT = ".wh."
_OPAQUE = ".wh..wh..opq"
_MODE_BITS = 0o7777
_CHUNK = 1 << 18


@dataclass(frozen=True)
class _Node:
    """The file, directory or link at a path."""

    kind: Literal["file", "dir", "link"]
    mode: int
    target: str = ""
    offset: int = 0
    """Offset of a file's contents in the spool file."""
    size: int = 0


class ImageLayers:
    """Merges an image's layers."""

    def __init__(self, root: str, limits: BundleLimits, spool: BinaryIO, what: str) -> None:
        """Start without layers. ``root`` is the task's path in the image, without outer slashes. All contents are written to
        ``spool``. ``what`` names the image in messages."""
        self._root = root
        self._spool = spool
        self._budget = SizeBudget(limits, f"the task in {what}")
        self._what = what
        self._nodes: dict[str, _Node] = {}

    def add(self, stream: io.RawIOBase) -> None:
        """Add the next layer, a tar or tar.gz. Whiteouts (markers of deleted files) apply only to lower layers, wherever they are
        in the tar."""
        below = dict(self._nodes)
        own: dict[str, _Node] = {}
        try:
            with tarfile.open(fileobj=_opened(stream), mode="r|") as tar:
                for member in tar:
                    self._member(tar, member, below, own)
        except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error, ValueError, RecursionError) as error:
            raise SourceError(f"{self._what}: a layer is not a tar file, or is damaged: {error}") from error
        for path, node in own.items():
            _remove(below, path, itself=node.kind != "dir" or below.get(path, node).kind != "dir", children=node.kind != "dir")
            _make_parents(below, path)
            below[path] = node
        self._nodes = below

    def entries(self) -> Iterator[tuple[str, BundleEntry]]:
        """Yield the task's entries in the merged layers, sorted by path, so that a directory comes before its contents. Raises
        SourceError if the task's directory is missing."""
        prefix = f"{self._root}/" if self._root else ""
        if self._root and self._nodes.get(self._root, _Node("file", 0)).kind != "dir":
            raise SourceError(f"{self._what} has no directory /{self._root}")
        for path in sorted(path for path in self._nodes if path.startswith(prefix) and path != self._root):
            yield path.removeprefix(prefix), self._entry(self._nodes[path])

    def _member(self, tar: tarfile.TarFile, member: tarfile.TarInfo, below: dict[str, _Node], own: dict[str, _Node]) -> None:
        path = _path(member.name)
        parent, _, name = path.rpartition("/")
        if name == _OPAQUE:
            _remove(below, parent, itself=False)
        elif name.startswith(_WHITEOUT):
            _remove(below, f"{parent}/{name.removeprefix(_WHITEOUT)}".lstrip("/"))
        elif path and self._inside(path):
            _remove(own, path, itself=not member.isdir(), children=not member.isdir())
            own[path] = self._node(tar, member, path, {**below, **own} if member.islnk() else own)

    def _inside(self, path: str) -> bool:
        return not self._root or f"{path}/".startswith(f"{self._root}/") or f"{self._root}/".startswith(f"{path}/")

    def _node(self, tar: tarfile.TarFile, member: tarfile.TarInfo, path: str, known: dict[str, _Node]) -> _Node:
        mode = member.mode & _MODE_BITS
        if member.isdir():
            return _Node("dir", mode)
        if f"{self._root}/".startswith(f"{path}/"):
            raise SourceError(f"{self._what}: /{path} is not a directory, so the task cannot be at or below it")
        if member.issym():
            self._budget.add(0)
            return _Node("link", 0o777, target=member.linkname)
        if member.islnk():
            target = known.get(_path(member.linkname))
            if target is None or target.kind != "file":
                raise SourceError(f"{self._what}: /{path} is a hard link to {member.linkname!r}, which is not in the task")
            self._budget.add(target.size)  # counted again, because a hard link becomes a separate file in the task
            return replace(target, mode=mode)
        source = tar.extractfile(member) if member.type in (tarfile.REGTYPE, tarfile.AREGTYPE) else None
        if source is None or member.issparse():
            raise SourceError(f"{self._what}: /{path} is neither a file nor a directory nor a link")
        self._budget.add(member.size)
        return self._spooled(source, member, mode)

    def _spooled(self, source: IO[bytes], member: tarfile.TarInfo, mode: int) -> _Node:
        offset = self._spool.seek(0, io.SEEK_END)
        left = member.size
        while left and (data := source.read(min(left, _CHUNK))):
            self._spool.write(data)
            left -= len(data)
        if left:
            raise SourceError(f"{self._what}: a layer ends within {member.name!r}")
        return _Node("file", mode, offset=offset, size=member.size)

    def _entry(self, node: _Node) -> BundleEntry:
        if node.kind != "file":
            return BundleEntry(node.kind, node.mode, target=node.target)
        self._spool.seek(node.offset)
        return BundleEntry("file", node.mode, data=self._spool.read(node.size))


class CheckedStream(io.RawIOBase):
    """A readable stream of chunks. ``finish`` checks its digest."""

    def __init__(self, chunks: Iterable[bytes], digest: str, what: str) -> None:
        self._chunks = iter(chunks)
        self._rest = b""
        self._digest = digest
        self._what = what
        self._sha = hashlib.sha256()

    def readable(self) -> bool:
        """Return True. io.RawIOBase requires this method."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read bytes into the buffer, and return their number, which is 0 only at the end."""
        if not self._rest:
            self._rest = next(self._chunks, b"")
            self._sha.update(self._rest)
        count = min(len(buffer), len(self._rest))
        buffer[:count], self._rest = self._rest[:count], self._rest[count:]
        return count

    def finish(self) -> None:
        """Read to the end. Raises SourceError if the digest differs."""
        while self.read(_CHUNK):
            pass
        digest = f"sha256:{self._sha.hexdigest()}"
        if digest != self._digest:
            raise SourceError(f"{self._what} has digest {digest}, not {self._digest}", reason=DIGEST)


def _opened(stream: io.RawIOBase) -> BinaryIO:
    """Return the uncompressed stream. The first bytes show the compression, because media types can be wrong."""
    buffered = io.BufferedReader(stream, _CHUNK)
    start = buffered.peek(4)[:4]
    if start[:2] == b"\x1f\x8b":
        return gzip.GzipFile(fileobj=buffered)  # type: ignore[return-value]
    if start == b"\x28\xb5\x2f\xfd":
        raise SourceError("a layer is compressed with zstd, which is not read: push the image with gzip layers")
    return buffered


def _path(name: str) -> str:
    path = name.removeprefix("/").removeprefix("./").rstrip("/")
    if path in ("", "."):
        return ""
    if not is_canonical(path):
        raise SourceError(f"a layer has the path {name!r}, which is refused")
    return path


def _remove(nodes: dict[str, _Node], path: str, *, itself: bool = True, children: bool = True) -> None:
    if itself:
        nodes.pop(path, None)
    if children:
        prefix = f"{path}/" if path else ""
        for child in [other for other in nodes if other.startswith(prefix) and other != path]:
            del nodes[child]


def _make_parents(nodes: dict[str, _Node], path: str) -> None:
    """Add parent directories that a layer omits. They replace files of lower layers at these paths."""
    parent = path.rpartition("/")[0]
    while parent:
        if nodes.get(parent, _Node("file", 0)).kind == "dir":
            return
        nodes[parent] = _Node("dir", 0o755)
        parent = parent.rpartition("/")[0]
