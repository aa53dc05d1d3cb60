"""Finished trials in an object store: PREFIX/NAMESPACE/NAME/UID/ has their files, and a manifest that is written last.

Everything may be repeated after a crash: names follow from what is stored, and the volume has a note of what was sent.
PREFIX/_trials/ has an empty object for each trial with anything in the store, made before all others and removed after them;
PREFIX/_gone/ one for each whose trial is gone, whose time tells since when.
"""

from __future__ import annotations

import asyncio
import hashlib
import stat
import tarfile
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterable, Mapping
from contextlib import aclosing
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

from ..engine.direct import URL_SECONDS, Sent
from ..errors import StoreError
from . import manifest
from .archive import END, header, padding
from .bucket import PART_BYTES, Bucket, Stored
from .keep import Pointer
from .manifest import Line
from .reading import Found, is_result
from .volume import Spool, TrialKey, Volume

T = TypeVar("T")

TRIALS, GONE = "_trials", "_gone"  # no namespace can be called so
_DIRECT = "sent"  # among a trial's objects: what its pods put there themselves
_SENT = "sent"  # what the volume's note of what was sent is called
_SMALL_BYTES = 1024 * 1024  # up to here a file is sent as one piece
_SMALL_AT_ONCE = 8
_LARGE_AT_ONCE = 1
_DELETED_AT_ONCE = 500
_TYPES = {"file": tarfile.REGTYPE, "directory": tarfile.DIRTYPE, "link": tarfile.SYMTYPE}


class Shipping:
    """Brings what is on the volume to the bucket, and back to readers."""

    def __init__(self, bucket: Bucket, volume: Volume) -> None:
        self._bucket = bucket
        self._volume = volume
        self._small = asyncio.Semaphore(_SMALL_AT_ONCE)
        self._large = asyncio.Semaphore(_LARGE_AT_ONCE)

    def url(self, key: TrialKey) -> str:
        """Where the trial's objects are."""
        return f"{self._bucket.url}/{key}"

    async def ship(self, key: TrialKey) -> str:
        """Have all results of a trial in the store and return where. May be called again; what is there is not sent again.

        StoreError: the store is away, or has this trial's results from elsewhere: what is here now must not replace them.
        """
        former = await self._bucket.head(_manifest(key))
        sent = frozenset((await self._volume.noted(key, _SENT)).splitlines())
        if former is not None and not sent:
            raise StoreError(f"{self.url(key)} has results of this trial already, and they are not those on the volume")
        await self._bucket.put(f"{TRIALS}/{key}", b"")
        pointers = await self._volume.pointers(key)
        async with self._volume.spool(key) as lines:
            await lines.write(manifest.head({"namespace": key.namespace, "name": key.name, "uid": key.uid}))
            async with aclosing(self._volume.listing(key)) as batches:
                async for batch in batches:
                    for line in await _all(self._ship(key, each, sent, pointers) for each in batch):
                        await lines.write(line.encode() if line else b"")
            await self._put_manifest(key, lines, former)
        return self.url(key)

    async def _put_manifest(self, key: TrialKey, lines: Spool, former: Stored | None) -> None:
        """In place of the one that was there before all this: a writer whose lease is over meets another's. (A large one goes
        in parts, for which no store knows conditions.)"""
        async with aclosing(lines.chunks()) as chunks:
            if lines.size > PART_BYTES:
                await self._bucket.put_stream(_manifest(key), chunks, lines.size)
            else:
                whole = b"".join([chunk async for chunk in chunks])
                await self._bucket.put_if(_manifest(key), whole, former.version if former else None)

    async def _ship(self, key: TrialKey, found: Found, sent: frozenset[bytes], pointers: Mapping[str, Pointer]) -> Line | None:
        """One file, directory or link."""
        line = _line(found)
        if line is None or line.kind != "file":
            return line
        if not line.size and (there := pointers.get(line.path)) is not None:
            return replace(line, **asdict(there))
        async with self._small if line.size <= _SMALL_BYTES else self._large:
            return await self._ship_file(key, line, sent)

    async def _ship_file(self, key: TrialKey, line: Line, sent: frozenset[bytes]) -> Line:
        if sent:
            line = replace(line, sha256=await self._digest(key, line))
            if _sent(line) in sent and await self._is_there(key, line):
                return line
        name = f"{key}/{line.object}"
        if line.size <= _SMALL_BYTES:
            async with aclosing(self._volume.contents(key, line.path)) as chunks:
                data = b"".join([chunk async for chunk in chunks])
            await self._bucket.put(name, data)
            line = replace(line, sha256=hashlib.sha256(data).hexdigest(), size=len(data))
        else:
            digest = _Digest()
            async with aclosing(self._volume.contents(key, line.path)) as chunks, aclosing(digest.of(chunks)) as read:
                await self._bucket.put_stream(name, read, line.size)
            line = replace(line, sha256=digest.sha256, size=digest.size)
        await self._volume.note(key, _SENT, _sent(line) + b"\n")
        return line

    async def _digest(self, key: TrialKey, line: Line) -> str:
        digest = _Digest()
        async with aclosing(self._volume.contents(key, line.path)) as chunks, aclosing(digest.of(chunks)) as read:
            async for _ in read:
                pass
        return digest.sha256

    async def _is_there(self, key: TrialKey, line: Line) -> bool:
        there = await self._bucket.head(f"{key}/{line.object}")
        return there is not None and there.size == line.size

    # -- reading

    async def exists(self, key: TrialKey) -> bool:
        """Whether all results of this trial are in the store."""
        return await self._bucket.head(_manifest(key)) is not None

    async def archive(self, key: TrialKey) -> AsyncGenerator[bytes, None]:
        """The same tar stream that the volume gave. StoreError when an object is not what the manifest says."""
        async with aclosing(self._lines(key)) as lines:
            async for line in lines:
                async with aclosing(self._member(key, Line.decode(line))) as pieces:
                    async for piece in pieces:
                        yield piece
        yield END

    async def _lines(self, key: TrialKey) -> AsyncGenerator[bytes, None]:
        """Those of the manifest, but for its head, by way of the disk: whoever reads them may be slow."""
        async with self._volume.spool(key) as spool:
            async with aclosing(self._bucket.get(_manifest(key))) as chunks:
                async for chunk in chunks:
                    await spool.write(chunk)
            first = True
            async with aclosing(spool.lines()) as batches:
                async for batch in batches:
                    if first:
                        manifest.check_head(batch[0])
                    for line in batch[1:] if first else batch:
                        yield line
                    first = False

    async def _member(self, key: TrialKey, line: Line) -> AsyncGenerator[bytes, None]:
        if line.version and (there := await self._bucket.head(f"{key}/{line.object}")) != _expected(key, line, there):
            yield _remark(line, "it is not what was collected: somebody who knew the address that it was sent to changed it")
            return
        yield header(line.path, _TYPES[line.kind], line.mode, line.mtime, size=line.size, target=line.target)
        if not line.size:
            return
        digest = _Digest()
        contents = self._bucket.get(f"{key}/{line.object}", line.version)
        async with aclosing(contents), aclosing(digest.of(contents)) as chunks:
            async for chunk in chunks:
                yield chunk
        if (digest.size, digest.sha256) != (line.size, line.sha256) and not line.version:
            raise StoreError(f"{self.url(key)}/{line.object} is not what was stored: its size or digest is another")
        yield padding(line.size)
        if digest.sha256 != line.sha256:
            yield _remark(line, f"the pod that sent it told another digest: {line.sha256}")

    # -- what goes straight from pods

    @property
    def direct(self) -> bool:
        """Whether requests can be signed for pods."""
        return self._bucket.can_sign

    async def invite(self, key: TrialKey, attempt: int, step: int, number: int) -> Invitation:
        """An address that a pod may put one file to."""
        await self._bucket.put(f"{TRIALS}/{key}", b"")
        url = await self._bucket.sign_put(f"{key}/{_direct(attempt, step, number)}", URL_SECONDS)
        headers = {"x-ms-blob-type": "BlockBlob"} if self._bucket.url.startswith("az://") else {}
        return Invitation(url, headers, self._bucket.ca if url.startswith("https://") else "")

    async def sent(self, key: TrialKey, attempt: int, step: int, sent: Sent) -> Pointer | None:
        """What a pod says it sent, if it is there."""
        name = _direct(attempt, step, sent.number)
        there = await self._bucket.head(f"{key}/{name}")
        if there is None or there.size != sent.file.size or there.version.strip('"') != sent.version.strip('"'):
            return None
        return Pointer(name, there.size, sent.sha256, there.version)

    async def part(self, key: TrialKey, path: str, *, offset: int, limit: int) -> bytes | None:
        """At most limit bytes of one file; None if it is not there. offset: a negative one counts from its end."""
        if not is_result(path):
            return None
        own = await self._bucket.get_part(f"{key}/{manifest.object_name(path)}", offset, limit)
        if own is not None or (line := await self._sent_line(key, path)) is None:
            return own
        if (there := await self._bucket.head(f"{key}/{line.object}")) is None or there != _expected(key, line, there):
            raise StoreError(f"{path!a} is not what was collected: somebody who knew the address that it was sent to changed it")
        return await self._bucket.get_part(there.name, offset, limit)

    async def _sent_line(self, key: TrialKey, path: str) -> Line | None:
        """What the manifest says of a file that a pod sent itself; most trials have none, and it is not read for them."""
        async with aclosing(self._bucket.list(f"{key}/{_DIRECT}")) as found:
            if await anext(found, None) is None:
                return None
        async with aclosing(self._lines(key)) as lines:
            async for data in lines:
                if f'"{_DIRECT}/'.encode() in data and (line := Line.decode(data)).path == path:
                    return line
        return None

    # -- retention

    async def trials(self) -> dict[TrialKey, float | None]:
        """Every trial that has anything in the store, and since when its trial is known to be gone, by the store's clock."""
        gone = {each.name.removeprefix(f"{GONE}/"): each.time async for each in self._bucket.list(GONE)}
        found: dict[TrialKey, float | None] = {}
        async for each in self._bucket.list(TRIALS):
            parts = each.name.split("/")[1:]
            try:
                found[TrialKey(*parts)] = gone.get("/".join(parts))
            except (StoreError, TypeError):
                continue  # somebody else's
        return found

    async def mark_gone(self, key: TrialKey, now: float) -> None:
        """Write down that the trial is gone since now; the store's own time of that is what is read back."""
        await self._bucket.put(f"{GONE}/{key}", f"{now}\n".encode())

    async def unmark(self, key: TrialKey) -> None:
        """The trial is there after all."""
        await self._bucket.delete([f"{GONE}/{key}"])

    async def remove(self, key: TrialKey) -> None:
        """Delete all that is stored of a trial: first the manifest, so that nobody reads half of it."""
        await self._bucket.delete([_manifest(key)])
        await self.remove_below(key)
        await self._bucket.delete([f"{GONE}/{key}"])
        await self._bucket.delete([f"{TRIALS}/{key}"])

    async def remove_below(self, key: TrialKey, but: Callable[[Stored], bool] = lambda _: False) -> None:
        """Delete a trial's objects, but for some."""
        names: list[str] = []
        async for each in self._bucket.list(str(key)):
            if not but(each):
                names.append(each.name)
            if len(names) == _DELETED_AT_ONCE:
                await self._bucket.delete(names)
                names = []
        if names:
            await self._bucket.delete(names)


@dataclass(frozen=True)
class Invitation:
    """To put one object. url: a secret; ca: PEM certificates by which the store is known, "" without TLS."""

    url: str = field(repr=False)
    headers: Mapping[str, str]
    ca: str = field(repr=False)


class _Digest:
    """What passed through."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self.size = 0

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()

    async def of(self, chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        async for chunk in chunks:
            self._hash.update(chunk)
            self.size += len(chunk)
            yield chunk


async def _all(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """What each returns. When one fails the others come to their end first: what they do is not to be done again."""
    found: list[T] = []
    for each in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(each, BaseException):
            raise each
        found.append(each)
    return found


def _manifest(key: TrialKey) -> str:
    return f"{key}/{manifest.NAME}"


def _direct(attempt: int, step: int, number: int) -> str:
    return f"{_DIRECT}/{attempt}/{step}/{number}"


def _expected(key: TrialKey, line: Line, there: Stored | None) -> Stored:
    return Stored(f"{key}/{line.object}", line.size, line.version, there.time if there else 0.0)


def _remark(line: Line, text: str) -> bytes:
    """A file beside the one that something is wrong with: the rest of the results is none the worse for it."""
    data = f"{line.path!a}: {text}\n".encode()
    return header(f"{line.path}.remark.txt", tarfile.REGTYPE, 0o644, line.mtime, size=len(data)) + data + padding(len(data))


def _sent(line: Line) -> bytes:
    """A line of the note of what was sent: short, whatever the path."""
    return hashlib.sha256(f"{line.size} {line.sha256} {line.object}".encode(errors="surrogateescape")).hexdigest().encode()


def _line(found: Found) -> Line | None:
    """A line of the manifest; None for what no archive has either."""
    info = found.info
    mode, mtime = stat.S_IMODE(info.st_mode), int(info.st_mtime)
    if stat.S_ISDIR(info.st_mode):
        return Line(found.path, "directory", mode, mtime)
    if stat.S_ISLNK(info.st_mode):
        return Line(found.path, "link", mode, mtime, target=found.target)
    if stat.S_ISREG(info.st_mode):
        return Line(found.path, "file", mode, mtime, size=info.st_size, object=manifest.object_name(found.path))
    return None
