"""The signing keys of step tokens, reread from the mounted Secret every 10 seconds, so that keys rotate without a restart.

The keyring knows when each key was missing: meanwhile, the requests of the steps whose tokens it signed were rejected.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from multistep.gateway.keys.tokens import read_signing_keys

_REREAD_SECONDS: Final = 10.0
_log: Final = logging.getLogger(__name__)


class Keyring:
    """The signing keys in a directory. The constructor raises ValueError if a key is too short or the directory has no key, OSError
    if the directory is missing. Later errors are logged, and the former keys stay in use."""

    def __init__(self, directory: Path, clock: Callable[[], float] = time.time) -> None:
        self._directory = directory
        self._clock = clock
        self._secrets = read_signing_keys(directory)
        self._read_at = clock()
        self._missing: dict[str, list[tuple[float, float]]] = {fingerprint(each): [] for each in self._secrets.values()}

    def secrets(self) -> Mapping[str, bytes]:
        """Return the secrets by key id, oldest first, read at most 10 seconds ago.

        Reading blocks the event loop, but only briefly: a mounted Secret is in memory (tmpfs).
        """
        if not 0 <= self._clock() - self._read_at <= _REREAD_SECONDS:
            self._read()
        return self._secrets

    def missing(self, key: str) -> Sequence[tuple[float, float]]:
        """Return start and end (seconds since the epoch) of the times in which the keyring did not have the key with this
        fingerprint. A key that it never had since the process's start is missing since the epoch."""
        self.secrets()
        return self._missing.get(key) or ([] if key in self._missing else [(0.0, self._clock())])

    def _read(self) -> None:
        before, self._read_at = self._read_at, self._clock()
        former = {fingerprint(each) for each in self._secrets.values()}
        try:
            self._secrets = read_signing_keys(self._directory)
        except (OSError, ValueError) as error:
            _log.error("cannot read the signing keys again; the former ones stay in use: %s", error)
            return
        present = {fingerprint(each) for each in self._secrets.values()}
        for key in present:
            self._missing.setdefault(key, [])
        for key in self._missing.keys() - present:
            began = before if key in former else self._missing[key].pop()[0]
            self._missing[key].append((began, self._read_at))


def fingerprint(secret: bytes) -> str:
    """Return a text that identifies a signing key and does not reveal it. A key's id does not identify it: another key may get
    it."""
    return hashlib.sha256(b"multistep: signing key\0" + secret).hexdigest()[:32]
