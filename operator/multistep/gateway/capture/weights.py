"""The version of the model's weights that answer the agents of a sweep, and the pauses in which a trainer replaces the weights.

Both are in a file, so that a restart of the gateway neither ends a pause nor stamps tokens with no version.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

_MAX_SWEEPS: Final = 4096


def staleness(version: str, tokens: Mapping[str, int]) -> float | None:
    """Return by how many versions the weights that sampled tokens are behind ``version`` on average. None if that is unknown.

    ``tokens`` is the number of tokens by the version of their weights. Only versions that are numbers count.
    """
    known = {int(name): count for name, count in tokens.items() if name.isdecimal() and count}
    if not version.isdecimal() or not known:
        return None
    return sum((int(version) - name) * count for name, count in known.items()) / sum(known.values())


class Weights:
    """The versions and pauses by sweep (NAMESPACE/NAME/UID). Above _MAX_SWEEPS, the sweep that was set first is dropped."""

    def __init__(self, file: Path) -> None:
        """Read the file, if it exists. Raises OSError, ValueError."""
        self._file = file
        self._sweeps: dict[str, tuple[str, bool]] = {}  # version, and whether requests are held
        self._in_flight = Counter[str]()
        self._changed = asyncio.Event()
        with suppress(FileNotFoundError):
            stored = json.loads(file.read_bytes())
            self._sweeps = {sweep: (version, paused) for sweep, (version, paused) in stored.get("sweeps", {}).items()}

    def version(self, sweep: str) -> str:
        """Return the version of the weights that answer now, or "" if no version was set."""
        return self._sweeps.get(sweep, ("", False))[0]

    def is_paused(self, sweep: str) -> bool:
        """Return whether the requests of a sweep wait."""
        return self._sweeps.get(sweep, ("", False))[1]

    def in_flight(self, sweep: str) -> int:
        """Return how many requests of a sweep are in flight."""
        return self._in_flight[sweep]

    def set(self, sweep: str, version: str, *, paused: bool) -> None:
        """Set the version of the weights that answer from now on, and then hold or send the requests that are not sent yet. The
        call is idempotent. Raises OSError."""
        if self._sweeps.get(sweep) == (version, paused):
            return
        found = {**self._sweeps, sweep: (version, paused)}
        found = dict(list(found.items())[-_MAX_SWEEPS:])
        written = self._file.with_suffix(".new")
        written.write_text(json.dumps({"sweeps": found}))
        written.replace(self._file)
        self._sweeps = found
        self._notify()

    async def wait_while_paused(self, sweep: str) -> None:
        """Wait until the requests of a sweep may be sent."""
        while self.is_paused(sweep):
            await self._changed.wait()

    @contextmanager
    def sending(self, sweep: str) -> Iterator[None]:
        """Count a request as in flight inside the context."""
        self._in_flight[sweep] += 1
        try:
            yield
        finally:
            self._in_flight[sweep] -= 1
            self._in_flight = +self._in_flight

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
