"""Uploads finished trials to an object store: PREFIX/NAMESPACE/NAME/UID/ has the files, and a manifest, written last.

Every operation is idempotent: object names are derived from the contents' paths, and a note on the volume lists the uploaded
files. PREFIX/_trials/ has an empty object for each trial in the store, created before the trial's other objects and deleted
after them. PREFIX/_gone/ has one for each trial that no longer exists; the object's time is when that was detected.
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

from multistep.engine.direct_upload import URL_SECONDS, Sent
from multistep.errors import StoreError
from multistep.store import manifest
from multistep.store.archive import END, header, padding
from multistep.store.bucket import PART_BYTES, Bucket, Stored
from multistep.store.keep import Pointer
from multistep.store.listing import Found, is_result
from multistep.store.manifest import Line
from multistep.store.volume import Spool, TrialKey, Volume

T = TypeVar("T")

TRIALS, GONE = "_trials", "_gone"  # not valid names of a namespace
_DIRECT = "sent"  # prefix of a trial's objects that its pods uploaded directly
_SENT = "sent"  # name of the note on the volume that lists uploaded files
_SMALL_BYTES = 1024 * 1024  # up to this size a file is uploaded in one request
_SMALL_AT_ONCE = 8
_LARGE_AT_ONCE = 1
_DELETED_AT_ONCE = 500
_TYPES = {"file": tarfile.REGTYPE, "directory": tarfile.DIRTYPE, "link": tarfile.SYMTYPE}


class Shipping:
    """Uploads results from the volume to the bucket, and serves them from there."""

    def __init__(self, bucket: Bucket, volume: Volume) -> None:
        self._bucket = bucket
        self._volume = volume
        self._small = asyncio.Semaphore(_SMALL_AT_ONCE)
        self._large = asyncio.Semaphore(_LARGE_AT_ONCE)

    def url(self, key: TrialKey) -> str:
        """Return the URL of the trial's objects."""
        return f"{self._bucket.url}/{key}"

    async def ship(self, key: TrialKey) -> str:
        """Upload all results of a trial and return their URL. Idempotent: uploaded files are not uploaded again.

        Raises StoreError if the store is unavailable, or has results that this volume did not upload: those are not replaced.
        """
        former = await self._bucket.head(_manifest(key))
        sent = frozenset((await self._volume.notes(key, _SENT)).splitlines())
        if former is not None and not sent:
            raise StoreError(
                f"{self.url(key)} already has results of this trial that this volume did not upload; they are not replaced"
            )
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
        """Write the manifest unless the previous version was replaced: this condition fences a writer that lost the lease.

        A large manifest needs a multipart upload, for which stores support no condition.
        """
        async with aclosing(lines.chunks()) as chunks:
            if lines.size > PART_BYTES:
                await self._bucket.put_stream(_manifest(key), chunks, lines.size)
            else:
                whole = b"".join([chunk async for chunk in chunks])
                await self._bucket.put_if(_manifest(key), whole, former.version if former else None)

    async def _ship(self, key: TrialKey, found: Found, sent: frozenset[bytes], pointers: Mapping[str, Pointer]) -> Line | None:
        """Upload one file, and return the manifest's line of a file, directory or link."""
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
            if _sent(line) in sent and await self._is_uploaded(key, line):
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

    async def _is_uploaded(self, key: TrialKey, line: Line) -> bool:
        there = await self._bucket.head(f"{key}/{line.object}")
        return there is not None and there.size == line.size

    # -- reading

    async def exists(self, key: TrialKey) -> bool:
        """Return whether all results of this trial are in the store."""
        return await self._bucket.head(_manifest(key)) is not None

    async def archive(self, key: TrialKey) -> AsyncGenerator[bytes, None]:
        """Yield the same tar stream as the volume. Raises StoreError for an object that does not match the manifest."""
        async with aclosing(self._lines(key)) as lines:
            async for line in lines:
                async with aclosing(self._member(key, Line.decode(line))) as pieces:
                    async for piece in pieces:
                        yield piece
        yield END

    async def _lines(self, key: TrialKey) -> AsyncGenerator[bytes, None]:
        """Yield the manifest's lines after its head. They are spooled to disk first: the reader may be slow."""
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
            yield _remark(line, "it is not what was collected: somebody changed it, probably with the presigned upload URL")
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
            raise StoreError(f"{self.url(key)}/{line.object} is not what was stored: its size or digest differs")
        yield padding(line.size)
        if digest.sha256 != line.sha256:
            yield _remark(line, f"the pod that uploaded it reported another digest: {line.sha256}")

    # -- direct uploads from pods

    @property
    def direct(self) -> bool:
        """Return whether the store supports presigned uploads by pods."""
        return self._bucket.can_sign

    async def invite(self, key: TrialKey, attempt: int, step: int, number: int) -> Invitation:
        """Return a presigned URL with which a pod can upload one file."""
        await self._bucket.put(f"{TRIALS}/{key}", b"")
        url = await self._bucket.sign_put(f"{key}/{_direct(attempt, step, number)}", URL_SECONDS)
        headers = {"x-ms-blob-type": "BlockBlob"} if self._bucket.url.startswith("az://") else {}
        return Invitation(url, headers, self._bucket.ca if url.startswith("https://") else "")

    async def sent(self, key: TrialKey, attempt: int, step: int, sent: Sent) -> Pointer | None:
        """Return the object that a pod reports to have uploaded; None if it is missing or does not match the report."""
        name = _direct(attempt, step, sent.number)
        there = await self._bucket.head(f"{key}/{name}")
        if there is None or there.size != sent.file.size or there.version.strip('"') != sent.version.strip('"'):
            return None
        return Pointer(name, there.size, sent.sha256, there.version)

    async def part(self, key: TrialKey, path: str, *, offset: int, limit: int) -> bytes | None:
        """Return at most limit bytes of one file; None if it does not exist. A negative offset counts from the end."""
        if not is_result(path):
            return None
        own = await self._bucket.get_part(f"{key}/{manifest.object_name(path)}", offset, limit)
        if own is not None or (line := await self._sent_line(key, path)) is None:
            return own
        if (there := await self._bucket.head(f"{key}/{line.object}")) is None or there != _expected(key, line, there):
            raise StoreError(f"{path!a} is not what was collected: somebody changed it, probably with the presigned upload URL")
        return await self._bucket.get_part(there.name, offset, limit)

    async def _sent_line(self, key: TrialKey, path: str) -> Line | None:
        """Return the manifest's line of a file that a pod uploaded. Trials without such files skip reading the manifest."""
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
        """Return every trial in the store, and since when it is marked as deleted (seconds since the epoch, store's clock)."""
        gone = {each.name.removeprefix(f"{GONE}/"): each.time async for each in self._bucket.list(GONE)}
        found: dict[TrialKey, float | None] = {}
        async for each in self._bucket.list(TRIALS):
            parts = each.name.split("/")[1:]
            try:
                found[TrialKey(*parts)] = gone.get("/".join(parts))
            except (StoreError, TypeError):
                continue  # not an object of ours
        return found

    async def mark_gone(self, key: TrialKey, now: float) -> None:
        """Mark the trial as deleted. The store's own time of the mark counts, not ``now``."""
        await self._bucket.put(f"{GONE}/{key}", f"{now}\n".encode())

    async def unmark(self, key: TrialKey) -> None:
        """Delete the mark: the trial exists."""
        await self._bucket.delete([f"{GONE}/{key}"])

    async def remove(self, key: TrialKey) -> None:
        """Delete all objects of a trial: the manifest first, so that no reader gets partial results."""
        await self._bucket.delete([_manifest(key)])
        await self.remove_below(key)
        await self._bucket.delete([f"{GONE}/{key}"])
        await self._bucket.delete([f"{TRIALS}/{key}"])

    async def remove_below(self, key: TrialKey, but: Callable[[Stored], bool] = lambda _: False) -> None:
        """Delete a trial's objects, except those for which ``but`` returns true."""
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
    """A presigned upload of one object. url: a secret; ca: PEM certificates that verify the store, "" without TLS."""

    url: str = field(repr=False)
    headers: Mapping[str, str]
    ca: str = field(repr=False)


class _Digest:
    """Size and SHA-256 of the chunks that passed through."""

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
    """Return all results. If one fails, wait for the others before raising: their uploads need not be repeated then."""
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
    """Return a file that describes a problem with the file beside it. The other results stay valid."""
    data = f"{line.path!a}: {text}\n".encode()
    return header(f"{line.path}.remark.txt", tarfile.REGTYPE, 0o644, line.mtime, size=len(data)) + data + padding(len(data))


def _sent(line: Line) -> bytes:
    """Return a file's line in the note of uploaded files: a digest, so that its length does not depend on the path."""
    return hashlib.sha256(f"{line.size} {line.sha256} {line.object}".encode(errors="surrogateescape")).hexdigest().encode()


def _line(found: Found) -> Line | None:
    """Return the manifest's line; None for types that archives exclude, too."""
    info = found.info
    mode, mtime = stat.S_IMODE(info.st_mode), int(info.st_mtime)
    if stat.S_ISDIR(info.st_mode):
        return Line(found.path, "directory", mode, mtime)
    if stat.S_ISLNK(info.st_mode):
        return Line(found.path, "link", mode, mtime, target=found.target)
    if stat.S_ISREG(info.st_mode):
        return Line(found.path, "file", mode, mtime, size=info.st_size, object=manifest.object_name(found.path))
    return None
