"""Reads and deletes results in the object store. PREFIX/NAMESPACE/NAME/UID/ has a trial's files and a manifest. Until the manifest
exists, files may be missing."""

from __future__ import annotations

import tarfile
from collections.abc import AsyncGenerator
from contextlib import aclosing

from multistep.errors import StoreError
from multistep.store.bucket.object_store import Bucket, ObjectInfo
from multistep.store.files.known_digests import StreamDigest
from multistep.store.files.trial_key import TrialKey
from multistep.store.results_volume import ResultsVolume
from multistep.store.trial import object_manifest
from multistep.store.trial.listing import TAR_END, is_result, tar_header, tar_padding
from multistep.store.trial.object_manifest import DIRECT_UPLOADS, ManifestLine

TRIALS, GONE = "_trials", "_gone"  # no trial's results have these prefixes, because a namespace's name has no underscore
_DELETED_AT_ONCE = 500
_TYPES = {"file": tarfile.REGTYPE, "directory": tarfile.DIRTYPE, "link": tarfile.SYMTYPE}


class BucketResults:
    """Serves and deletes results in the bucket. The disk of ``volume`` has temporary copies of manifests."""

    def __init__(self, bucket: Bucket, volume: ResultsVolume) -> None:
        self._bucket = bucket
        self._volume = volume

    def url(self, key: TrialKey) -> str:
        """Return the URL of the trial's objects."""
        return f"{self._bucket.url}/{key}"

    async def exists(self, key: TrialKey) -> bool:
        """Return whether all results of this trial are in the store."""
        return await self._bucket.head(manifest_name(key)) is not None

    async def archive(self, key: TrialKey) -> AsyncGenerator[bytes, None]:
        """Yield the same tar stream as ResultsVolume.archive. Raises StoreError if an object that the operator uploaded does not
        match the manifest. If an object that a pod uploaded does not match, the stream has a text file with the reason instead."""
        async with aclosing(self._lines(key)) as lines:
            async for line in lines:
                async with aclosing(self._member(key, ManifestLine.decode(line))) as pieces:
                    async for piece in pieces:
                        yield piece
        yield TAR_END

    async def _lines(self, key: TrialKey) -> AsyncGenerator[bytes, None]:
        """Yield the manifest's lines after the first, from a copy on disk, because the caller may read slowly."""
        async with self._volume.collections.spool(key) as spool:
            async with aclosing(self._bucket.get(manifest_name(key))) as chunks:
                async for chunk in chunks:
                    await spool.write(chunk)
            first = True
            async with aclosing(spool.lines()) as batches:
                async for batch in batches:
                    if first:
                        object_manifest.check_head(batch[0])
                    for line in batch[1:] if first else batch:
                        yield line
                    first = False

    async def _member(self, key: TrialKey, line: ManifestLine) -> AsyncGenerator[bytes, None]:
        if line.version and (there := await self._bucket.head(f"{key}/{line.object}")) != _expected(key, line, there):
            yield _remark(line, "it is not what was collected: it was changed later, probably with the presigned upload URL")
            return
        yield tar_header(line.path, _TYPES[line.kind], line.mode, line.mtime, size=line.size, target=line.target)
        if not line.size:
            return
        digest = StreamDigest()
        contents = self._bucket.get(f"{key}/{line.object}", line.version)
        async with aclosing(contents), aclosing(digest.of(contents)) as chunks:
            async for chunk in chunks:
                yield chunk
        if (digest.size, digest.sha256) != (line.size, line.sha256) and not line.version:
            raise StoreError(f"{self.url(key)}/{line.object} is not what was stored: its size or digest differs")
        yield tar_padding(line.size)
        if digest.sha256 != line.sha256:
            yield _remark(line, f"the pod that uploaded it reported another digest: {line.sha256}")

    async def part(self, key: TrialKey, path: str, *, offset: int, limit: int) -> bytes | None:
        """Return at most ``limit`` bytes of one file, or None if it does not exist. A negative offset counts from the end."""
        if not is_result(path):
            return None
        own = await self._bucket.get_part(f"{key}/{object_manifest.object_name(path)}", offset, limit)
        if own is not None or (line := await self._sent_line(key, path)) is None:
            return own
        if (there := await self._bucket.head(f"{key}/{line.object}")) is None or there != _expected(key, line, there):
            raise StoreError(f"{path!a} is not what was collected: it was changed later, probably with the presigned upload URL")
        return await self._bucket.get_part(there.name, offset, limit)

    async def _sent_line(self, key: TrialKey, path: str) -> ManifestLine | None:
        """Return the manifest's line of a file that a pod uploaded, or None. Reads the manifest only if the trial has such
        files."""
        async with aclosing(self._bucket.list(f"{key}/{DIRECT_UPLOADS}")) as found:
            if await anext(found, None) is None:
                return None
        async with aclosing(self._lines(key)) as lines:
            async for data in lines:
                if f'"{DIRECT_UPLOADS}/'.encode() in data and (line := ManifestLine.decode(data)).path == path:
                    return line
        return None

    async def trials(self) -> dict[TrialKey, float | None]:
        """Return every trial in the store, with the time of its deletion mark (seconds since the epoch, by the store's clock) or
        None."""
        gone = {mark.name.removeprefix(f"{GONE}/"): mark.time async for mark in self._bucket.list(GONE)}
        trials: dict[TrialKey, float | None] = {}
        async for entry in self._bucket.list(TRIALS):
            parts = entry.name.split("/")[1:]
            try:
                trials[TrialKey(*parts)] = gone.get("/".join(parts))
            except (StoreError, TypeError):
                continue  # Multistep did not create this object
        return trials

    async def mark_gone(self, key: TrialKey, now: float) -> None:
        """Mark the trial as deleted. ``trials`` returns the mark's time by the store's clock, not ``now``."""
        await self._bucket.put(f"{GONE}/{key}", f"{now}\n".encode())

    async def unmark(self, key: TrialKey) -> None:
        """Delete the trial's deletion mark."""
        await self._bucket.delete([f"{GONE}/{key}"])

    async def remove(self, key: TrialKey) -> None:
        """Delete all objects of a trial, the manifest first, so that no reader gets partial results."""
        await self._bucket.delete([manifest_name(key)])
        await self._remove_below(key)
        await self._bucket.delete([f"{GONE}/{key}"])
        await self._bucket.delete([f"{TRIALS}/{key}"])

    async def _remove_below(self, key: TrialKey) -> None:
        names: list[str] = []
        async for entry in self._bucket.list(str(key)):
            names.append(entry.name)
            if len(names) == _DELETED_AT_ONCE:
                await self._bucket.delete(names)
                names = []
        if names:
            await self._bucket.delete(names)


def manifest_name(key: TrialKey) -> str:
    """Return the name of the object with a trial's manifest."""
    return f"{key}/{object_manifest.NAME}"


def _expected(key: TrialKey, line: ManifestLine, there: ObjectInfo | None) -> ObjectInfo:
    return ObjectInfo(f"{key}/{line.object}", line.size, line.version, there.time if there else 0.0)


def _remark(line: ManifestLine, text: str) -> bytes:
    """Return a tar member with a text file that describes a problem with a result file. The reader still gets all other files."""
    data = f"{line.path!a}: {text}\n".encode()
    return tar_header(f"{line.path}.remark.txt", tarfile.REGTYPE, 0o644, line.mtime, size=len(data)) + data + tar_padding(len(data))
