"""The identity of a trial in all stores, and the protocol of the stores."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Protocol, Self

from multistep.api.trial.trial import MultiStepTrial
from multistep.errors import StoreError

_OBJECT_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,252}")
_UID = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,63}")


@dataclass(frozen=True)
class TrialKey:
    """Namespace, name and UID of a trial. The constructor raises StoreError if a part is not valid for a Kubernetes object."""

    namespace: str
    name: str
    uid: str

    def __post_init__(self) -> None:
        if not (_OBJECT_NAME.fullmatch(self.namespace) and _OBJECT_NAME.fullmatch(self.name) and is_uid(self.uid)):
            raise StoreError(f"{self.namespace!r}/{self.name!r}/{self.uid!r} is not a valid NAMESPACE/NAME/UID of an object")

    @classmethod
    def of(cls, trial: MultiStepTrial) -> Self:
        """Return a trial's key."""
        return cls(trial.metadata.namespace, trial.metadata.name, trial.metadata.uid)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}/{self.uid}"


def is_uid(text: str) -> bool:
    """Return whether a text can be the UID of an object, and so a name in a store."""
    return _UID.fullmatch(text) is not None


class ResultsStore(Protocol):
    """A store of trial results, for the results server and garbage collection. Every method may raise StoreError."""

    async def exists(self, key: TrialKey) -> bool:
        """Return whether this store has results of the trial."""

    def archive(self, key: TrialKey) -> AsyncGenerator[bytes, None]:
        """Yield the trial directory as a tar stream."""

    async def part(self, key: TrialKey, path: str, *, offset: int, limit: int) -> bytes | None:
        """Return at most ``limit`` bytes of one file, or None if it does not exist. A negative offset counts from the end."""

    async def trials(self) -> dict[TrialKey, float | None]:
        """Return every trial with results, with the time of its deletion mark (seconds since the epoch) or None."""

    async def mark_gone(self, key: TrialKey, now: float) -> None:
        """Mark the trial as deleted since ``now`` (seconds since the epoch)."""

    async def unmark(self, key: TrialKey) -> None:
        """Delete the trial's deletion mark."""

    async def remove(self, key: TrialKey) -> None:
        """Delete a trial's results, if they exist."""
