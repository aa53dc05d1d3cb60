"""The signing keys of step tokens, reread from the mounted Secret every 10 seconds, so that keys rotate without a restart."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from multistep.gateway.tokens import read_signing_keys

_REREAD_SECONDS: Final = 10.0
_log: Final = logging.getLogger(__name__)


class Keyring:
    """The signing keys in a directory. The constructor raises ValueError if a key is too short or the directory has no key, OSError
    if the directory is missing. Later errors are logged, and the former keys stay in use."""

    def __init__(self, directory: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._directory = directory
        self._clock = clock
        self._secrets = read_signing_keys(directory)
        self._read_at = clock()

    def secrets(self) -> Mapping[str, bytes]:
        """Return the secrets by key id, oldest first, read at most 10 seconds ago.

        Reading blocks the event loop, but only briefly: a mounted Secret is in memory (tmpfs).
        """
        if self._clock() - self._read_at > _REREAD_SECONDS:
            self._read_at = self._clock()
            try:
                self._secrets = read_signing_keys(self._directory)
            except (OSError, ValueError) as error:
                _log.error("cannot read the signing keys again; the former ones stay in use: %s", error)
        return self._secrets
