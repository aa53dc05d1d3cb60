"""The files with the token records of steps, which stay here until the operator has moved them to the results."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from multistep.gateway.accounting.ledger_rows import RequestRow
from multistep.gateway.accounting.step_usage import CaptureFacts
from multistep.gateway.keys.tokens import StepKey
from multistep.token_records.read_file import read
from multistep.token_records.write_file import Writer

# If the volume has a smaller free share, new steps are not recorded, so that the ledger can still be written.
_MIN_FREE: Final = 0.1
_log: Final = logging.getLogger(__name__)


class StepFiles:
    """The files of all steps."""

    def __init__(self, directory: Path, max_bytes: int) -> None:
        """Create the directory. ``max_bytes`` is the maximum size of a step's file. Raises OSError."""
        directory.mkdir(exist_ok=True)
        self._directory = directory
        self._max_bytes = max_bytes
        self._writers: dict[StepKey, Writer] = {}
        self._facts: dict[StepKey, CaptureFacts] = {}
        self._missing: defaultdict[StepKey, list[str]] = defaultdict(list)
        self._lock = asyncio.Lock()
        self._closing = asyncio.Lock()

    def path(self, step: StepKey) -> Path:
        """Return the path of a step's file, which may not exist."""
        return self._directory / f"{hashlib.blake2b(str(step).encode(), digest_size=16).hexdigest()}.msgpack.zst"

    async def writer(self, step: StepKey) -> Writer:
        """Return the writer of a step's file. If the file exists, as after a restart, it is continued. Raises OSError."""
        async with self._lock:
            if step not in self._writers:
                self._writers[step] = await asyncio.to_thread(self._open, step)
            return self._writers[step]

    def miss(self, step: StepKey, request: str, why: str) -> None:
        """Remember that a request of the step has no record."""
        _log.error("step %s: the tokens of request %s are not recorded: %s", step, request, why)
        self._missing[step].append(request)

    async def close(self, step: StepKey, rows: Sequence[RequestRow]) -> CaptureFacts | None:
        """End a step's file, and return what it contains, or None if the step's tokens are not recorded. The call is idempotent.

        ``rows`` has the step's requests. Those that the gateway's end interrupted are lost, and the agent may have got a part of
        their answers. Raises OSError.
        """
        async with self._closing:
            if step in self._facts:
                return self._facts[step]
            if step not in self._writers and not self.path(step).exists():
                return None
            writer = await self.writer(step)
            facts = await asyncio.to_thread(_close, writer, self.path(step), self._missing_of(step, writer, rows))
            self._facts[step] = facts
            del self._writers[step]
            self._missing.pop(step, None)
            return facts

    def delete(self, step: StepKey) -> None:
        """Delete a step's file. The call is idempotent."""
        self._facts.pop(step, None)
        self.path(step).unlink(missing_ok=True)

    def forget(self, before: float) -> None:
        """Delete the files that were last written before a time in seconds since the epoch."""
        for file in self._directory.iterdir():
            with suppress(FileNotFoundError):
                if file.stat().st_mtime < before:
                    file.unlink()

    def _open(self, step: StepKey) -> Writer:
        volume = os.statvfs(self._directory)
        full = volume.f_bavail < _MIN_FREE * volume.f_blocks
        return Writer(self.path(step), {"step": step.step, "attempt": step.attempt}, 0 if full else self._max_bytes)

    def _missing_of(self, step: StepKey, writer: Writer, rows: Sequence[RequestRow]) -> list[str]:
        recorded = {request for request, _ in writer.recorded}
        return [*self._missing.get(step, ()), *(row.id for row in rows if row.state == "lost" and row.id not in recorded)]


def _close(writer: Writer, path: Path, missing: Sequence[str]) -> CaptureFacts:
    complete = not missing and not writer.dropped
    if writer.closed:  # by a process that ended before the operator got its answer
        complete = read(path).complete
    writer.close(missing)
    return CaptureFacts(
        bytes=writer.size,
        sha256=writer.sha256,
        records=len(writer.recorded),
        tokens=writer.tokens,
        complete=complete,
    )
