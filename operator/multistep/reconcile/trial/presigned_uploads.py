"""Lets the pod send large files directly to the object store by presigned URLs, and verifies that they arrived.

Large files go there unless they may hold secrets. engine.journal.results_limits says how many bytes the volume has room for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Self

from multistep.api.trial.runner_records import Record
from multistep.engine.journal import results_limits as direct
from multistep.engine.journal.operations import Collect, Source
from multistep.engine.journal.results_limits import (
    SURVEYED_FILES,
    Headroom,
    LargeFile,
    Send,
    Survey,
    UploadProgress,
    crowded_out,
    too_large,
)
from multistep.errors import StoreError
from multistep.reconcile.trial.session_state import DriveState
from multistep.runner_client.session import Session
from multistep.store.bucket.upload_results import DirectUploads
from multistep.store.files.trial_key import TrialKey
from multistep.store.results_volume import ResultsVolume
from multistep.store.trial.collect_files import Collections
from multistep.store.trial.unpack_download import CROWDED, UploadedObject
from multistep.store.trial.volume_usage import Collection


@dataclass(frozen=True)
class Gathering:
    """A Collect operation in progress, which stores a step's files."""

    key: TrialKey
    attempt: int
    collect: Collect
    secret: bool
    """Whether the trial has secrets. The operator then stores text files itself, to redact the secrets."""


@dataclass(frozen=True)
class Direct:
    """Lets pods send files directly to the object store."""

    uploads: DirectUploads
    volume: ResultsVolume
    min_bytes: int
    """Minimum size of a file to send."""
    linger_seconds: float
    """How long a session waits for one file."""

    async def run(self, session: Session, gathering: Gathering, records: dict[str, Record]) -> UploadProgress:
        """Let the pod send files until all are sent, or until one takes longer than linger_seconds. Return the progress.

        In the second case, ``running`` of the progress is the record of the file that is still being sent.
        """
        while (reached := direct.upload_progress(gathering.collect, records)).next is not None:
            record = session.seen(await self._advance(session, gathering, reached))
            records[record.id] = record
            if reached.running is not None and not record.done:
                return replace(reached, running=record)
        return reached

    async def _advance(self, session: Session, gathering: Gathering, reached: UploadProgress) -> Record:
        if reached.running is not None:
            return await session.wait(reached.running.id, self.linger_seconds)
        match reached.next:
            case Send() as send:
                return await self._send(session, gathering, send)
            case Survey(id):
                found = await session.survey(gathering.collect.sources, min_bytes=self.min_bytes, limit=direct.SURVEYED_FILES)
                return await session.note(id, {"files": [each.to_json() for each in found if self._is_sendable(gathering, each)]})
        raise AssertionError("nothing is next")

    def _is_sendable(self, gathering: Gathering, file: LargeFile) -> bool:
        return file.size <= direct.MAX_BYTES and (file.binary or not gathering.secret)

    async def _send(self, session: Session, gathering: Gathering, send: Send) -> Record:
        invitation = await self.uploads.invite(gathering.key, gathering.attempt, gathering.collect.step, send.number)
        request = {
            "id": send.id,
            "source": gathering.collect.sources[send.file.source].path,
            "path": send.file.path,
            "size": send.file.size,
            "url": invitation.url,
            "headers": dict(invitation.headers),
            "ca": invitation.ca,
            "timeoutSeconds": send.seconds,
        }
        return await session.operate("send", request)

    async def pointers(self, gathering: Gathering, reached: UploadProgress) -> dict[str, UploadedObject]:
        """Return the objects in the store that match the pod's report about sent files, by the files' names in the download.

        A file without a matching object is logged in trial.log.
        """
        found: dict[str, UploadedObject] = {}
        for sent in reached.sent:
            pointer = await self.uploads.sent(gathering.key, gathering.attempt, gathering.collect.step, sent)
            if pointer is None:
                await self._log(gathering, f"{sent.file.member}: the store does not have it as the pod sent it")
            else:
                found[sent.file.member] = pointer
        if reached.failure:
            await self._log(gathering, reached.failure)
        return found

    async def _log(self, gathering: Gathering, why: str) -> None:
        line = f"{gathering.collect.id}: a large file came through the operator, not directly to the store: {why}"
        await self.volume.append_log(gathering.key, line)


def marked_as_sent(sources: Sequence[Source], sent: Mapping[str, object]) -> tuple[Source, ...]:
    """Return the sources with the sent files marked, so that a download omits these files."""
    names = [member.partition("/")[::2] for member in sent]
    return tuple(
        replace(source, sent=tuple(path for index, path in names if index == str(number))) for number, source in enumerate(sources)
    )


_SURVEY_PROTOCOL: Final = 2


@dataclass(frozen=True)
class FreeSpace:
    """The space for the files of one Collect."""

    now: Headroom
    """What may be stored now."""
    alone: Headroom | None = None
    """What could be stored if the namespace had no other trial, None if no verifier gets the files."""

    @classmethod
    async def of(cls, collections: Collections, drive: DriveState, operation: Collect) -> Self:
        """Return the space for the files of a Collect.

        If a verifier gets the files, results of earlier attempts count only for steps that the attempt keeps.
        """
        collection = Collection(drive.scope.attempt, operation.step, operation.part)
        if not drive.hands_over(operation):
            return cls(await collections.headroom(drive.key, collection))
        kept = {(each.attempt, index) for index, each in enumerate(drive.scope.kept)}

        def counts(other: Collection) -> bool:
            return other.attempt == drive.scope.attempt or (other.attempt, other.step) in kept

        now = await collections.headroom(drive.key, collection, counts=counts)
        return cls(now, await collections.most(drive.key, collection, counts=counts))

    async def left_out(self, drive: DriveState, session: Session, sources: Sequence[Source]) -> dict[str, str]:
        """Return the files that are left out because they are too large for the free space, by name in the download, with the
        reason.

        Raises StoreError if other trials use the space that an artifact for a verifier needs, so that the trial waits and retries.
        If the artifact were left out, the step's reward would depend on other trials.
        """
        if drive.protocol < _SURVEY_PROTOCOL:
            return {}
        files = await session.survey(sources, min_bytes=self.now.survey_bytes, limit=SURVEYED_FILES)
        here = [each for each in files if each.path not in sources[each.source].sent]
        crowded = crowded_out(here, self.now, self.alone) if self.alone is not None else ()
        if any(each.source for each in crowded):  # source 0 is /logs/agent, which no verifier gets
            raise StoreError(CROWDED)
        return {each.member: self.now.refusal(each.size) for each in too_large(here, self.now)}
