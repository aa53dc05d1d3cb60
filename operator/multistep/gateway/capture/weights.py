"""The version of the model's weights behind a credential, and the pauses in which a trainer replaces the weights.

Both are in a file, so that a restart of the gateway neither ends a pause nor stamps tokens with no version.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


class Weights:
    """The versions and pauses by the credential's id."""

    def __init__(self, file: Path) -> None:
        """Read the file, if it exists. Raises OSError, ValueError."""
        self._file = file
        self._versions: dict[str, str] = {}
        self._paused: set[str] = set()
        self._in_flight = Counter[str]()
        self._changed = asyncio.Event()
        with suppress(FileNotFoundError):
            stored = json.loads(file.read_bytes())
            self._versions, self._paused = stored["versions"], set(stored["paused"])

    def version(self, credential: str) -> str:
        """Return the version of the weights that answer now, or "" if no version was set."""
        return self._versions.get(credential, "")

    def set_version(self, credential: str, version: str) -> None:
        """Set the version of the weights that answer from now on. Raises OSError."""
        self._versions[credential] = version
        self._save()

    def pause(self, credential: str) -> None:
        """Hold the requests of a credential that are not sent yet. The call is idempotent. Raises OSError."""
        self._paused.add(credential)
        self._save()

    def resume(self, credential: str) -> None:
        """Send the requests that wait. The call is idempotent. Raises OSError."""
        self._paused.discard(credential)
        self._save()

    def is_paused(self, credential: str) -> bool:
        """Return whether the requests of a credential wait."""
        return credential in self._paused

    async def wait_while_paused(self, credential: str) -> None:
        """Wait until the requests of a credential may be sent."""
        while credential in self._paused:
            await self._changed.wait()

    @contextmanager
    def sending(self, credential: str) -> Iterator[None]:
        """Count a request as in flight inside the context."""
        self._in_flight[credential] += 1
        try:
            yield
        finally:
            self._in_flight[credential] -= 1
            self._in_flight = +self._in_flight
            self._notify()

    async def drained(self, credential: str, seconds: float) -> int:
        """Wait for at most ``seconds`` until no request of a credential is in flight. Return the number that still is."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._in_flight[credential]:
                    await self._changed.wait()
        return self._in_flight[credential]

    def _save(self) -> None:
        written = self._file.with_suffix(".new")
        written.write_text(json.dumps({"versions": self._versions, "paused": sorted(self._paused)}))
        written.replace(self._file)
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
