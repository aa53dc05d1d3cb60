"""Uploads of large files by pods, directly to the object store: creates presigned URLs and checks the uploaded objects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from multistep.engine.journal.direct_upload import URL_SECONDS, Sent
from multistep.store.bucket.bucket_results import TRIALS
from multistep.store.bucket.object_store import Bucket
from multistep.store.files.trial_key import TrialKey
from multistep.store.trial.object_manifest import DIRECT_UPLOADS
from multistep.store.trial.unpack_download import Pointer


@dataclass(frozen=True)
class Invitation:
    """A presigned upload of one object. url: a secret; ca: PEM certificates that verify the store, "" without TLS."""

    url: str = field(repr=False)
    headers: Mapping[str, str]
    ca: str = field(repr=False)


class DirectUploads:
    """Uploads of a trial's large files to the bucket."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    @property
    def supported(self) -> bool:
        """Return whether the store supports presigned uploads by pods."""
        return self._bucket.can_sign

    async def invite(self, key: TrialKey, attempt: int, step: int, number: int) -> Invitation:
        """Return a presigned URL with which a pod can upload one file. number: the file's number in the step."""
        await self._bucket.put(f"{TRIALS}/{key}", b"")
        url = await self._bucket.sign_put(f"{key}/{_name(attempt, step, number)}", URL_SECONDS)
        headers = {"x-ms-blob-type": "BlockBlob"} if self._bucket.url.startswith("az://") else {}
        return Invitation(url, headers, self._bucket.ca if url.startswith("https://") else "")

    async def sent(self, key: TrialKey, attempt: int, step: int, sent: Sent) -> Pointer | None:
        """Return the object that a pod reports to have uploaded; None if it is missing or does not match the report."""
        name = _name(attempt, step, sent.number)
        there = await self._bucket.head(f"{key}/{name}")
        if there is None or there.size != sent.file.size or there.version.strip('"') != sent.version.strip('"'):
            return None
        return Pointer(name, there.size, sent.sha256, there.version)


def _name(attempt: int, step: int, number: int) -> str:
    return f"{DIRECT_UPLOADS}/{attempt}/{step}/{number}"
