"""The space that the results limits leave for the files that a Collect operation downloads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

from multistep.engine.journal.direct_upload import SURVEYED_FILES
from multistep.engine.journal.operations import Collect, Source
from multistep.engine.journal.results_limits import Headroom, crowded_out, too_large
from multistep.errors import StoreError
from multistep.reconcile.trial.session_state import Drive
from multistep.runner_client.session import Session
from multistep.store.trial.collect_files import Collections
from multistep.store.trial.unpack_download import CROWDED
from multistep.store.trial.volume_usage import Collection

_SURVEY_PROTOCOL: Final = 2


@dataclass(frozen=True)
class Room:
    """The space for one Collect. now: bytes and files that may be stored now; alone: those that could be stored if the namespace
    had no other trial, None if no verifier gets the files."""

    now: Headroom
    alone: Headroom | None = None

    @classmethod
    async def of(cls, collections: Collections, drive: Drive, operation: Collect) -> Self:
        """Return the space for a Collect. If a verifier gets the files, results of earlier attempts count only for kept steps."""
        collection = Collection(drive.scope.attempt, operation.step, operation.part)
        if not drive.hands_over(operation):
            return cls(await collections.headroom(drive.key, collection))
        kept = {(each.attempt, index) for index, each in enumerate(drive.scope.kept)}

        def counts(other: Collection) -> bool:
            return other.attempt == drive.scope.attempt or (other.attempt, other.step) in kept

        now = await collections.headroom(drive.key, collection, counts=counts)
        return cls(now, await collections.most(drive.key, collection, counts=counts))

    async def left_out(self, drive: Drive, session: Session, sources: Sequence[Source]) -> dict[str, str]:
        """Return the reason for each file that is left out because it is too large for the free space, by its name in the download.

        Raises StoreError if other trials leave no space for an artifact that a verifier gets: without it, the step's reward would
        depend on them. The trial then waits, and retries.
        """
        if drive.protocol < _SURVEY_PROTOCOL:
            return {}
        files = await session.survey(sources, min_bytes=self.now.survey_bytes, limit=SURVEYED_FILES)
        here = [each for each in files if each.path not in sources[each.source].sent]
        crowded = crowded_out(here, self.now, self.alone) if self.alone is not None else ()
        if any(each.source for each in crowded):  # source 0: /logs/agent, which no verifier gets
            raise StoreError(CROWDED)
        return {each.member: self.now.refusal(each.size) for each in too_large(here, self.now)}
