"""Finds the directories of trials among fetched results."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final

from multistep.errors import StoreError
from multistep.store.evidence import file_names
from multistep.store.evidence.fetched_results import Damaged, Directory, read
from multistep.store.trial import object_manifest

_MARKS: Final = frozenset({*file_names.OWN, object_manifest.NAME, "result.json", "config.json", "lock.json", "trial.log"})
_OF_JOBS: Final = frozenset({"result.json", "config.json", "lock.json"})
_MAX_RESULT_BYTES = 64 << 20
_MAX_DEPTH = 8  # maximum depth of a trial's directory below the given one; an object store has PREFIX/NAMESPACE/NAME/UID
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
        if _is_trial(path):
            found.append(path)
        elif depth < _MAX_DEPTH:
            ahead += [(each, depth + 1) for each in reversed(_directories(path))]
    return found


def _is_trial(path: Path) -> bool:
    """Report whether a directory is that of a trial. The directory of a fetched sweep (a job) has some files of the same names."""
    marks = {name for name in _MARKS if os.path.lexists(path / name)}
    return bool(marks) and not (marks <= _OF_JOBS and _is_job(path))


def _is_job(path: Path) -> bool:
    try:
        document = json.loads(read(Directory(path), "result.json", _MAX_RESULT_BYTES))
    except (Damaged, ValueError, RecursionError):
        return False
    return isinstance(document, dict) and "n_total_trials" in document


def _directories(path: Path) -> list[Path]:
    try:
        with os.scandir(path) as entries:
            return sorted(path / each.name for each in entries if each.is_dir(follow_symlinks=False))
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}") from error
