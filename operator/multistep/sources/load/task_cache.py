"""An LRU cache of fetched tasks on the operator's disk, in files named ``KEY-DIGEST``.

Anybody may delete cached files at any time, because the operator fetches them again. A file whose digest does not match is deleted
when it is read.
"""

from __future__ import annotations

import os
import shutil
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from multistep.sources.fetch.__main__ import INCOMING
from multistep.sources.fetch.fetch_messages import FetchResult


@dataclass(frozen=True)
class CachedFile:
    """A cached file. Its contents are not verified."""

    path: Path
    size: int

    @property
    def digest(self) -> str:
        """The digest in the file's name, as ``sha256:`` and 64 hexadecimal digits."""
        return f"sha256:{self.path.name.rpartition('-')[2]}"


class TaskCache:
    """The cache. Only one process may use its directory."""

    def __init__(self, directory: Path, most: int) -> None:
        """Create a cache of at most ``most`` bytes. The newest file stays even if it is larger."""
        self.directory = directory
        self.incoming = directory / INCOMING
        self._most = most
        self._files: OrderedDict[str, CachedFile] = OrderedDict()  # by cache key, the least recently used first

    def open(self) -> None:
        """Load the list of existing files, and delete incomplete files. Raises OSError."""
        shutil.rmtree(self.incoming, ignore_errors=True)
        self.incoming.mkdir(parents=True)
        files = [(path.stat(), path) for path in self.directory.iterdir() if path.is_file()]
        for stat, path in sorted(files, key=lambda file: file[0].st_mtime):
            self._files[path.name.rpartition("-")[0]] = CachedFile(path, stat.st_size)
        self._evict()

    @property
    def size(self) -> int:
        """The total bytes of all files."""
        return sum(file.size for file in self._files.values())

    def put(self, key: str, fetched: FetchResult) -> None:
        """Move a file atomically from the incoming directory into the cache. Raises OSError."""
        source = self.incoming / Path(fetched.file).name
        path = self.directory / f"{key}-{fetched.digest.removeprefix('sha256:')}"
        size = source.stat().st_size
        source.rename(path)
        former = self._files.pop(key, None)
        if former is not None and former.path != path:
            former.path.unlink(missing_ok=True)
        self._files[key] = CachedFile(path, size)
        self._evict()

    def find(self, key: str) -> CachedFile | None:
        """Return the file of this key, or None."""
        if key in self._files:
            self._files.move_to_end(key)
            with suppress(OSError):
                os.utime(self._files[key].path)  # after a restart, the mtimes give the LRU order
        return self._files.get(key)

    def discard(self, file: CachedFile) -> None:
        """Delete a corrupt cached file, unless a newer file has replaced it."""
        key = file.path.name.rpartition("-")[0]
        if self._files.get(key) == file:
            self.drop(key)

    def drop(self, key: str) -> None:
        """Delete the file of a key."""
        if (file := self._files.pop(key, None)) is not None:
            file.path.unlink(missing_ok=True)

    def _evict(self) -> None:
        while self.size > self._most and len(self._files) > 1:
            self.drop(next(iter(self._files)))
