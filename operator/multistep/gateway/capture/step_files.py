"""The files with the token records of steps, which stay here until the operator has moved them to the results."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from multistep.gateway.accounting.ledger_rows import RequestRow
from multistep.gateway.accounting.request_ledger import RequestLedger
from multistep.gateway.accounting.step_usage import CaptureFacts
from multistep.gateway.capture.record_limits import MIN_FREE, RecordLimits, exceeded, why_incomplete
from multistep.gateway.keys.tokens import StepKey
from multistep.token_records.read_file import read
from multistep.token_records.write_file import Writer

_log: Final = logging.getLogger(__name__)


class StepFiles:
    """The files of all steps."""

    def __init__(
        self,
        directory: Path,
        limits: RecordLimits,
        ledger: RequestLedger,
        ended: Callable[[str, Mapping[str, int]], None] = lambda _sweep, _tokens: None,
    ) -> None:
        """Create the directory. ``ledger`` keeps the bytes of closed steps. ``ended`` is called when a step of a sweep is closed,
        with the number of its tokens by the version of their weights. Raises OSError."""
        directory.mkdir(exist_ok=True)
        self._directory = directory
        self._limits = limits
        self._ledger = ledger
        self._ended = ended
        self._writers: dict[StepKey, Writer] = {}
        self._bytes: dict[str, int] = {}  # by sweep, of all its steps, while a step of the sweep is open
        self._facts: dict[StepKey, CaptureFacts] = {}
        self._missing: defaultdict[StepKey, list[str]] = defaultdict(list)
        self._lock = asyncio.Lock()
        self._closing = asyncio.Lock()

    def path(self, step: StepKey) -> Path:
        """Return the path of a step's file, which may not exist."""
        return self._directory / f"{hashlib.blake2b(str(step).encode(), digest_size=16).hexdigest()}.msgpack.zst"

    async def writer(self, step: StepKey, sweep: str) -> Writer:
        """Return the writer of a step's file. If the file exists, as after a restart, it is continued. ``sweep`` is that of the
        step's token. Raises OSError, sqlite3.Error."""
        async with self._lock:
            if step not in self._writers:
                if sweep and sweep not in self._bytes:
                    self._bytes[sweep] = await self._ledger.captured_bytes(sweep)
                writer = await asyncio.to_thread(self._open, step, sweep)
                if sweep and not writer.closed:
                    self._bytes[sweep] += writer.size
                self._writers[step] = writer
            return self._writers[step]

    def miss(self, step: StepKey, request: str, why: str) -> None:
        """Remember that a request of the step has no record."""
        _log.error("step %s: the tokens of request %s are not recorded: %s", step, request, why)
        self._missing[step].append(request)

    async def close(self, step: StepKey, rows: Sequence[RequestRow]) -> CaptureFacts | None:
        """End a step's file, and return what it contains, or None if the step's tokens are not recorded. The call is idempotent.

        ``rows`` has the step's requests. Those that the gateway's end interrupted are lost, and the agent may have got a part of
        their answers. Raises OSError, sqlite3.Error.
        """
        async with self._closing:
            if step in self._facts:
                return self._facts[step]
            if step not in self._writers and not self.path(step).exists():
                return None
            sweep = rows[0].sweep if rows else ""
            writer = await self.writer(step, sweep)
            missing = self._missing_of(step, writer, rows)
            facts = await asyncio.to_thread(_close, writer, self.path(step), missing, self._limits)
            await self._ledger.write_captured(step, sweep, facts.bytes)
            async with self._lock:
                self._facts[step] = facts
                del self._writers[step]
                if not self._writers:
                    self._bytes.clear()  # the ledger has them
            self._missing.pop(step, None)
            self._ended(sweep, writer.versions)
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

    def _open(self, step: StepKey, sweep: str) -> Writer:
        return Writer(self.path(step), {"step": step.step, "attempt": step.attempt}, self._admission(sweep))

    def _admission(self, sweep: str) -> Callable[[int, int], str]:
        """Return the function that counts the bytes to write, or names the limit that forbids them."""

        def admit(size: int, added: int) -> str:
            total = self._bytes[sweep] + added if sweep else 0
            volume = os.statvfs(self._directory)
            full = volume.f_bavail < MIN_FREE * volume.f_blocks
            limit = exceeded(self._limits, step=size + added, sweep=total, full=full)
            if sweep and not limit:
                self._bytes[sweep] = total
            return limit

        return admit

    def _missing_of(self, step: StepKey, writer: Writer, rows: Sequence[RequestRow]) -> list[str]:
        recorded = {request for request, _ in writer.recorded}
        return [*self._missing.get(step, ()), *(row.id for row in rows if row.state == "lost" and row.id not in recorded)]


def _close(writer: Writer, path: Path, missing: Sequence[str], limits: RecordLimits) -> CaptureFacts:
    why = why_incomplete(missing, writer.dropped, limits)
    if writer.closed:  # by a process that ended before the operator got its answer
        why = read(path).why
    writer.close(missing)
    return CaptureFacts(
        bytes=writer.size,
        sha256=writer.sha256,
        records=len(writer.recorded),
        tokens=writer.tokens,
        why=why,
    )
