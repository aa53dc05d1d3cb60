"""Finds the directories of trials among fetched results."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from multistep.errors import StoreError
from multistep.store import manifest
from multistep.store.evidence import names

_MARKS: Final = frozenset({*names.OWN, manifest.NAME, "result.json", "config.json", "lock.json", "trial.log"})
_MAX_DEPTH = 8  # maximum depth of a trial's directory; in an object store it is PREFIX/NAMESPACE/NAME/UID
_MAX_DIRECTORIES = 100_000


def trial_directories(top: Path) -> list[Path]:
    """Return the directories of all trials at or below a directory, in order. Links are not followed.

    Raises StoreError if there are too many directories.
    """
    found, ahead, count = list[Path](), [(top, 0)], 0
    while ahead:
        path, depth = ahead.pop()
        if (count := count + 1) > _MAX_DIRECTORIES:
            raise StoreError(f"{top} has more than {_MAX_DIRECTORIES} directories: name one with fewer trials")
        if any(os.path.lexists(path / name) for name in _MARKS):
            found.append(path)
        elif depth < _MAX_DEPTH:
            ahead += [(each, depth + 1) for each in reversed(_directories(path))]
    return found


def _directories(path: Path) -> list[Path]:
    try:
        with os.scandir(path) as entries:
            return sorted(path / each.name for each in entries if each.is_dir(follow_symlinks=False))
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}") from error
