"""The results of trials on a directory of the operator's: ``root/NAMESPACE/NAME/UID/`` is Harbor's trial directory.

Every call may be repeated after a crash, with the same result. Whatever blocks runs in this volume's few threads.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ..api.task import ArtifactConfig
from ..engine.journal import Collected


@dataclass(frozen=True)
class TrialKey:
    """Which trial. StoreError when a part could not be the name or uid of an object."""

    namespace: str
    name: str
    uid: str


class Step(Protocol):
    """What is to be known of a step; an engine.plan.StepPlan is one. directory: None for a single-step task."""

    @property
    def name(self) -> str: ...
    @property
    def directory(self) -> str | None: ...
    @property
    def artifacts(self) -> tuple[ArtifactConfig, ...]: ...


class Spool:
    """A download on its way to the volume: a nameless file, which is gone when it is closed or the operator dies."""

    async def write(self, data: bytes) -> None:
        """Append. StoreError past the limit or when the disk is full."""
        raise NotImplementedError


class Volume:
    """Results below root. unpack_threads: the most threads used."""

    def __init__(self, root: Path, unpack_threads: int = 2) -> None:
        raise NotImplementedError

    def spool(self, key: TrialKey, max_bytes: int | None = None) -> AbstractAsyncContextManager[Spool]:
        """A place for a download. max_bytes: more than that is a StoreError."""
        raise NotImplementedError

    async def keep_step(self, key: TrialKey, spool: Spool, *, attempt: int, step: Step, types: Sequence[str]) -> Collected:
        """Unpack a step's logs and artifacts into their place. types: of all sources, logs first, as the runner answered."""
        raise NotImplementedError

    async def begin_attempt(self, key: TrialKey, attempt: int) -> None:
        """Move what an earlier attempt left to ``attempts/N/``."""
        raise NotImplementedError

    async def finish(self, key: TrialKey, files: Mapping[str, bytes], started: Iterable[str] = ()) -> None:
        """Write result.json and its like, and make the directories of every started step. started: step names."""
        raise NotImplementedError

    async def append_log(self, key: TrialKey, line: str) -> None:
        """Add a line with the time to trial.log."""
        raise NotImplementedError

    async def redact(self, key: TrialKey, secrets: Iterable[str]) -> None:
        """Replace secrets in all text files of the trial."""
        raise NotImplementedError

    async def remove(self, key: TrialKey) -> None:
        """Delete a trial's results."""
        raise NotImplementedError

    def trials(self) -> Iterator[TrialKey]:
        """Every trial that has results."""
        raise NotImplementedError

    def free_bytes(self) -> int:
        """Bytes left on the volume."""
        raise NotImplementedError

    def archive(self, key: TrialKey) -> AsyncIterator[bytes]:
        """The trial directory as a tar stream (PAX, uncompressed)."""
        raise NotImplementedError

    def access(self, key: TrialKey) -> str:
        """The token that a reader of these results must show."""
        raise NotImplementedError

    def uri(self, base: str, key: TrialKey) -> str:
        """Where the results are read."""
        raise NotImplementedError
