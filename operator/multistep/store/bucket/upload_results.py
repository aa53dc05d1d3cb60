"""Uploads finished trials to an object store. PREFIX/NAMESPACE/NAME/UID/ gets the files and a manifest, which is written last.

Every operation is idempotent, because the names of objects are derived from the files' paths, and a hidden file on the volume lists
the uploaded files. PREFIX/_trials/ has an empty object for each trial in the store, which is created before the trial's other
objects and deleted after them. PREFIX/_gone/ has an object for each trial that the operator found to be deleted.
"""

from __future__ import annotations

import asyncio
import hashlib
import stat
from collections.abc import Coroutine, Iterable, Mapping
from contextlib import aclosing
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

from multistep.engine.journal.results_limits import URL_SECONDS, SentFile
from multistep.errors import StoreError
from multistep.store.bucket.bucket_results import TRIALS, BucketResults, manifest_name
from multistep.store.bucket.object_store import PART_BYTES, Bucket, ObjectInfo
from multistep.store.files.known_digests import StreamDigest
from multistep.store.files.thread_pool import Spool
from multistep.store.files.trial_key import TrialKey
from multistep.store.results_volume import ResultsVolume
from multistep.store.trial import object_manifest
from multistep.store.trial.listing import ResultEntry
from multistep.store.trial.object_manifest import DIRECT_UPLOADS, ManifestLine
from multistep.store.trial.unpack_download import UploadedObject


@dataclass(frozen=True)
class PresignedUpload:
    """A request with which a pod can upload one object."""

    url: str = field(repr=False)
    """The presigned URL, which is a secret."""
    headers: Mapping[str, str]
    ca: str = field(repr=False)
    """CA certificates (PEM) that verify the store, or "" without TLS."""


class DirectUploads:
    """Lets pods upload large files of a trial to the bucket themselves."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    @property
    def supported(self) -> bool:
        """Whether the store supports presigned uploads by pods."""
        return self._bucket.can_sign

    async def invite(self, key: TrialKey, attempt: int, step: int, number: int) -> PresignedUpload:
        """Return the request with which a pod can upload one file. ``number`` identifies the file in the step."""
        await self._bucket.put(f"{TRIALS}/{key}", b"")
        url = await self._bucket.sign_put(f"{key}/{_name(attempt, step, number)}", URL_SECONDS)
        headers = {"x-ms-blob-type": "BlockBlob"} if self._bucket.url.startswith("az://") else {}
        return PresignedUpload(url, headers, self._bucket.ca if url.startswith("https://") else "")

    async def sent(self, key: TrialKey, attempt: int, step: int, sent: SentFile) -> UploadedObject | None:
        """Return the object that a pod reports to have uploaded, or None if it is missing or does not match the report."""
        name = _name(attempt, step, sent.number)
        there = await self._bucket.head(f"{key}/{name}")
        if there is None or there.size != sent.file.size or there.version.strip('"') != sent.version.strip('"'):
            return None
        return UploadedObject(name, there.size, sent.sha256, there.version)


def _name(attempt: int, step: int, number: int) -> str:
    return f"{DIRECT_UPLOADS}/{attempt}/{step}/{number}"


T = TypeVar("T")

_SENT = "sent"  # name of the hidden file on the volume that lists uploaded files
_SMALL_BYTES = 1024 * 1024  # maximum size of a file that is uploaded in one request
_SMALL_AT_ONCE = 8
_LARGE_AT_ONCE = 1


class ResultsUploader:
    """Uploads results from the volume to the bucket. ``results`` reads the bucket, and ``uploads`` lets pods upload large files."""

    def __init__(self, bucket: Bucket, volume: ResultsVolume) -> None:
        self._bucket = bucket
        self._volume = volume
        self.results = BucketResults(bucket, volume)
        self.uploads = DirectUploads(bucket)
        self._small = asyncio.Semaphore(_SMALL_AT_ONCE)
        self._large = asyncio.Semaphore(_LARGE_AT_ONCE)

    async def ship(self, key: TrialKey) -> str:
        """Upload all results of a trial that are not uploaded yet, and return their URL. The call is idempotent.

        Raises StoreError if the store is unavailable, or if it has results that this volume did not upload, which are not replaced.
        """
        former = await self._bucket.head(manifest_name(key))
        sent = frozenset((await self._volume.notes(key, _SENT)).splitlines())
        if former is not None and not sent:
            raise StoreError(
                f"{self.results.url(key)} already has results of this trial that this volume did not upload; they are not replaced"
            )
        await self._bucket.put(f"{TRIALS}/{key}", b"")
        pointers = await self._volume.collections.pointers(key)
        async with self._volume.collections.spool(key) as lines:
            await lines.write(object_manifest.head({"namespace": key.namespace, "name": key.name, "uid": key.uid}))
            async with aclosing(self._volume.listing(key)) as batches:
                async for batch in batches:
                    for line in await _all(self._ship(key, entry, sent, pointers) for entry in batch):
                        await lines.write(line.encode() if line else b"")
            await self._put_manifest(key, lines, former)
        return self.results.url(key)

    async def _put_manifest(self, key: TrialKey, lines: Spool, former: ObjectInfo | None) -> None:
        """Write the manifest if the stored one is still ``former``, so that an operator that lost the lease cannot replace it.

        A large manifest needs a multipart upload, which supports no such condition.
        """
        async with aclosing(lines.chunks()) as chunks:
            if lines.size > PART_BYTES:
                await self._bucket.put_stream(manifest_name(key), chunks, lines.size)
            else:
                whole = b"".join([chunk async for chunk in chunks])
                await self._bucket.put_if(manifest_name(key), whole, former.version if former else None)

    async def _ship(
        self, key: TrialKey, entry: ResultEntry, sent: frozenset[bytes], pointers: Mapping[str, UploadedObject]
    ) -> ManifestLine | None:
        """Upload a file, and return its line of the manifest. Return only the line for a directory or link, and None for other
        types."""
        line = _line(entry)
        if line is None or line.kind != "file":
            return line
        if not line.size and (there := pointers.get(line.path)) is not None:
            return replace(line, **asdict(there))
        async with self._small if line.size <= _SMALL_BYTES else self._large:
            return await self._ship_file(key, line, sent)

    async def _ship_file(self, key: TrialKey, line: ManifestLine, sent: frozenset[bytes]) -> ManifestLine:
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
            digest = StreamDigest()
            async with aclosing(self._volume.contents(key, line.path)) as chunks, aclosing(digest.of(chunks)) as read:
                await self._bucket.put_stream(name, read, line.size)
            line = replace(line, sha256=digest.sha256, size=digest.size)
        await self._volume.note(key, _SENT, _sent(line) + b"\n")
        return line

    async def _digest(self, key: TrialKey, line: ManifestLine) -> str:
        digest = StreamDigest()
        async with aclosing(self._volume.contents(key, line.path)) as chunks, aclosing(digest.of(chunks)) as read:
            async for _ in read:
                pass
        return digest.sha256

    async def _is_uploaded(self, key: TrialKey, line: ManifestLine) -> bool:
        there = await self._bucket.head(f"{key}/{line.object}")
        return there is not None and there.size == line.size


async def _all(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run the coroutines concurrently. If one raises an error, wait for the others first, so that no upload is interrupted."""
    results: list[T] = []
    for outcome in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome
        results.append(outcome)
    return results


def _sent(line: ManifestLine) -> bytes:
    """Return a file's line in the list of uploaded files. The line is a digest, because a path may be long."""
    return hashlib.sha256(f"{line.size} {line.sha256} {line.object}".encode(errors="surrogateescape")).hexdigest().encode()


def _line(entry: ResultEntry) -> ManifestLine | None:
    """Return an entry's line of the manifest, or None for file types that results do not include, e.g. sockets."""
    info = entry.info
    mode, mtime = stat.S_IMODE(info.st_mode), int(info.st_mtime)
    if stat.S_ISDIR(info.st_mode):
        return ManifestLine(entry.path, "directory", mode, mtime)
    if stat.S_ISLNK(info.st_mode):
        return ManifestLine(entry.path, "link", mode, mtime, target=entry.target)
    if stat.S_ISREG(info.st_mode):
        return ManifestLine(entry.path, "file", mode, mtime, size=info.st_size, object=object_manifest.object_name(entry.path))
    return None
