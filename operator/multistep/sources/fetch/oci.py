"""Fetches a task from a registry: an artifact that `multistep package --to` pushed, or an ordinary image that contains the task."""

from __future__ import annotations

import gzip
import hashlib
import io
import platform
import tarfile
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, BinaryIO, Final, Literal

from multistep.api.trial.values import DIGEST, NOT_FOUND, TOO_LARGE
from multistep.errors import SourceError
from multistep.sources.fetch.fetch_messages import Fetched, Order
from multistep.sources.fetch.http_client import Http, check_named, listed, make_pool, pieces
from multistep.sources.fetch.output_file import Budget, Output, write_tar
from multistep.sources.fetch.registry_client import Reference, Registry, login
from multistep.sources.task.bundle import Entry, Limits

_WHITEOUT = ".wh."
_OPAQUE = ".wh..wh..opq"
_MODE_BITS = 0o7777
_CHUNK = 1 << 18


@dataclass(frozen=True)
class _Node:
    """The file, directory or link at a path. offset, size: where a file's contents are in the spool file."""

    kind: Literal["file", "dir", "link"]
    mode: int
    target: str = ""
    offset: int = 0
    size: int = 0


class Layers:
    """An image's merged layers. root: the task's path in the image, without outer slashes. spool: file for all files' contents."""

    def __init__(self, root: str, limits: Limits, spool: BinaryIO, what: str) -> None:
        self._root = root
        self._spool = spool
        self._budget = Budget(limits, f"the task in {what}")
        self._what = what
        self._nodes: dict[str, _Node] = {}

    def add(self, stream: io.RawIOBase) -> None:
        """Add the next layer, a tar or tar.gz. Its whiteouts apply to lower layers only, wherever they are in the tar."""
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

    def entries(self) -> Iterator[tuple[str, Entry]]:
        """Yield the task's entries in the merged layers, sorted, parents first. Raises SourceError if the task's directory is
        missing."""
        prefix = f"{self._root}/" if self._root else ""
        if self._root and self._nodes.get(self._root, _Node("file", 0)).kind != "dir":
            raise SourceError(f"{self._what} has no directory /{self._root}")
        for path in sorted(each for each in self._nodes if each.startswith(prefix) and each != self._root):
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
            self._budget.add(target.size)  # count its bytes again: a hard link becomes a separate file in the task
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

    def _entry(self, node: _Node) -> Entry:
        if node.kind != "file":
            return Entry(node.kind, node.mode, target=node.target)
        self._spool.seek(node.offset)
        return Entry("file", node.mode, data=self._spool.read(node.size))


class Checked(io.RawIOBase):
    """A readable stream of chunks, whose digest ``finish`` checks."""

    def __init__(self, chunks: Iterable[bytes], digest: str, what: str) -> None:
        self._chunks = iter(chunks)
        self._rest = b""
        self._digest = digest
        self._what = what
        self._sha = hashlib.sha256()

    def readable(self) -> bool:
        """Return True: io.RawIOBase requires this method."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read up to the buffer's size and return the number of bytes; 0 only at the end."""
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
        found = f"sha256:{self._sha.hexdigest()}"
        if found != self._digest:
            raise SourceError(f"{self._what} has digest {found}, not {self._digest}", reason=DIGEST)


def _opened(stream: io.RawIOBase) -> BinaryIO:
    """Return the uncompressed stream. Compression is detected by the first bytes, because media types can be wrong."""
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
    if "\0" in path or any(part in ("", ".", "..") for part in path.split("/")):
        raise SourceError(f"a layer has the path {name!r}, which is refused")
    return path


def _remove(nodes: dict[str, _Node], path: str, *, itself: bool = True, children: bool = True) -> None:
    if itself:
        nodes.pop(path, None)
    if children:
        prefix = f"{path}/" if path else ""
        for each in [other for other in nodes if other.startswith(prefix) and other != path]:
            del nodes[each]


def _make_parents(nodes: dict[str, _Node], path: str) -> None:
    """Add missing parent directories, which a layer may omit. They replace files of lower layers at these paths."""
    parent = path.rpartition("/")[0]
    while parent:
        if nodes.get(parent, _Node("file", 0)).kind == "dir":
            return
        nodes[parent] = _Node("dir", 0o755)
        parent = parent.rpartition("/")[0]


ARTIFACT_TYPE: Final = "application/vnd.multistep.task.v1"
BUNDLE_TYPE: Final = "application/vnd.multistep.task.v1.tar+gzip"
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
_MAX_LAYERS = 128
_LAYER_BYTES = 4 << 30  # maximum size of a compressed layer; only the task's files are kept
DOCKER_CONFIG = ".dockerconfigjson"


def fetch(order: Order, incoming: Path) -> Fetched:
    """Fetch the task in an image or artifact. Raises SourceError."""
    request, rules = order.request, order.rules
    reference = Reference.parse(request.location)
    check_named(reference.host, rules.allowed_hosts)
    credentials = login(request.credentials[DOCKER_CONFIG], reference) if DOCKER_CONFIG in request.credentials else None
    insecure = listed(reference.host, rules.insecure_hosts)
    registry = Registry(Http(make_pool()), reference, credentials, plain_http=insecure)
    revision, manifest = _manifest(registry, reference, request.revision or reference.manifest)
    what = str(replace(reference, tag="", digest=revision))
    if kept := kept_in(order, revision):
        return kept
    with Output(incoming) as output:
        if _is_artifact(manifest) and request.many:
            raise SourceError(f"{what} has one packed task, not a directory of tasks")
        if _is_artifact(manifest):
            _fetch_artifact(registry, manifest, request.path, output, rules.limits, what)
        else:
            _fetch_image(registry, manifest, request.path.strip("/"), output, rules.limits, what)
    return Fetched(revision, output.digest, output.path.name)


def kept_in(order: Order, revision: str) -> Fetched | None:
    """Return the cached task of a revision, or None. Also None for a request of many tasks: some may have been evicted."""
    if order.request.many:
        return None
    found = next(Path(order.cache).glob(f"{order.request.key(revision)}-*"), None)
    return Fetched(revision, f"sha256:{found.name.rpartition('-')[2]}") if found else None


def _manifest(registry: Registry, reference: Reference, wanted: str) -> tuple[str, Mapping[str, Any]]:
    """Return digest and content of an image's manifest. In an index, choose this architecture's manifest, else the first one."""
    digest, content = registry.manifest(wanted)
    if isinstance(content.get("manifests"), list):
        digest, content = registry.manifest(_chosen(content["manifests"], reference))
    if not isinstance(content.get("layers"), list):
        raise SourceError(f"{reference} is not an image or artifact in the current format of OCI or Docker", reason=NOT_FOUND)
    return digest, content


def _chosen(manifests: Sequence[Any], reference: Reference) -> str:
    machine = _MACHINES.get(platform.machine(), platform.machine())
    places = [(each, each.get("platform") or {}) for each in manifests if isinstance(each, dict)]
    fitting = [each for each, place in places if (place.get("os"), place.get("architecture")) == ("linux", machine)]
    for each in (*fitting, *(each for each, _ in places)):
        if str(each.get("digest", "")).startswith("sha256:"):
            return str(each["digest"])
    raise SourceError(f"{reference} is an index without images", reason=NOT_FOUND)


def _is_artifact(manifest: Mapping[str, Any]) -> bool:
    return any(_layer_type(each) == BUNDLE_TYPE for each in manifest["layers"])


def _layer_type(layer: object) -> object:
    return layer.get("mediaType") if isinstance(layer, dict) else None


def _digest(layer: object, what: str) -> str:
    digest = str(layer.get("digest", "")) if isinstance(layer, dict) else ""
    if not digest.startswith("sha256:"):
        raise SourceError(f"{what}: a layer has no sha256 digest")
    return digest


def _fetch_artifact(registry: Registry, manifest: Mapping[str, Any], path: str, output: Output, limits: Limits, what: str) -> None:
    if path.strip("/"):
        raise SourceError(f"spec.task.oci.path = {path!r} is for ordinary images; {what} holds a packed task")
    if len(manifest["layers"]) != 1:
        raise SourceError(f"{what} has {len(manifest['layers'])} layers; an artifact with a task has one")
    digest = _digest(manifest["layers"][0], what)
    stream = Checked(pieces(registry.blob(digest), f"the task in {what}", limits.compressed), digest, f"the layer of {what}")
    while data := stream.read(1 << 18):
        output.write(data)
    stream.finish()


def _fetch_image(registry: Registry, manifest: Mapping[str, Any], root: str, output: Output, limits: Limits, what: str) -> None:
    if len(manifest["layers"]) > _MAX_LAYERS:
        raise SourceError(f"{what} has {len(manifest['layers'])} layers, more than {_MAX_LAYERS}", reason=TOO_LARGE)
    with tempfile.TemporaryFile(dir=output.path.parent) as spool:
        layers = Layers(root, limits, spool, what)
        for each in manifest["layers"]:
            digest = _digest(each, what)
            name = f"layer {digest} of {what}"
            stream = Checked(pieces(registry.blob(digest), name, _LAYER_BYTES), digest, name)
            layers.add(stream)
            stream.finish()
        write_tar(output, layers.entries())
