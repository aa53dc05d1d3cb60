"""The signing keys, read again when the mounted Secret changes, so that keys rotate without a restart."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from multistep.gateway.tokens import read_signing_keys

_REREAD_SECONDS: Final = 10.0


class Keyring:
    """The signing keys in a directory. Raises ValueError if a secret is too short, OSError if the directory is missing."""

    def __init__(self, directory: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._directory = directory
        self._clock = clock
        self._secrets = read_signing_keys(directory)
        self._read_at = clock()

    def secrets(self) -> Mapping[str, bytes]:
        """Return the secrets by key id, read at most 10 seconds ago. The directory is in memory (tmpfs), so reading is fast."""
        if self._clock() - self._read_at > _REREAD_SECONDS:
            self._secrets = read_signing_keys(self._directory)
            self._read_at = self._clock()
        return self._secrets
