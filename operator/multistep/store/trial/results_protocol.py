"""The common interface of the stores of trial results: the volume and the object store."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from multistep.store.files.trial_key import TrialKey


class ResultsStore(Protocol):
    """A store of trial results, for the results server and garbage collection. Every method may raise StoreError."""

    async def exists(self, key: TrialKey) -> bool:
        """Return whether this store has results of the trial."""

    def archive(self, key: TrialKey) -> AsyncGenerator[bytes, None]:
        """Yield the trial directory as a tar stream."""

    async def part(self, key: TrialKey, path: str, *, offset: int, limit: int) -> bytes | None:
        """Return at most limit bytes of one file; None if it does not exist. A negative offset counts from the end."""

    async def trials(self) -> dict[TrialKey, float | None]:
        """Return every trial with results, with the time of its deletion mark (seconds since the epoch), None without a mark."""

    async def mark_gone(self, key: TrialKey, now: float) -> None:
        """Mark the trial as deleted since ``now``."""

    async def unmark(self, key: TrialKey) -> None:
        """Delete the trial's deletion mark."""

    async def remove(self, key: TrialKey) -> None:
        """Delete a trial's results, if they exist."""
