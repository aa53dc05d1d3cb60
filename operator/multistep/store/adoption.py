"""Copies checkpoints of one trial to another, which then continues from them or verifies them. Blocking code.

The copies are checkpoints of attempt 0, as a trial's own attempts start at 1. Files are linked, not copied: nothing changes them,
and each trial's checkpoints can be deleted on their own.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from multistep.store.checkpoint_files import Base, Commit, keep, place, read
from multistep.store.directory import TrialDirectory

ADOPTED: Final = 0  # attempt of the copies
_ATTEMPT = re.compile(r"\d+/")


def adopt(to: TrialDirectory, source: Path, chain: Sequence[Commit]) -> list[Commit]:
    """Copy the layers of a checkpoint, lowest first, and return the copies. Idempotent: a copy that exists stays.

    source: directory of the trial that has them.
    """
    copies: list[Commit] = []
    for layer in chain:
        copy = adopted(layer, copies[-1] if copies else None)
        there = read(to.path / place(copy.id))
        copies.append(there if isinstance(there, Commit) else _copy(to, source / place(layer.id), copy))
    return copies


def _copy(to: TrialDirectory, layer: Path, commit: Commit) -> Commit:
    with to.work() as work:
        draft = work / "checkpoint"
        draft.mkdir()
        for name in commit.files:
            _link(layer / name, draft / name)
        return keep(to, draft, commit)


def _link(file: Path, copy: Path) -> None:
    try:
        os.link(file, copy)
    except FileNotFoundError:
        raise
    except OSError:  # a file system without hard links, or too many links to one file
        shutil.copyfile(file, copy)


def adopted(layer: Commit, below: Commit | None) -> Commit:
    """Return a layer as one of attempt 0, with its records."""
    base = Base(attempt=ADOPTED, step=below.step, digest=below.digest) if below is not None else None
    return layer.model_copy(
        update={
            "attempt": ADOPTED,
            "final": False,  # it is for the other trial to say
            "base": base,
            "attempts": (ADOPTED,) * len(layer.attempts),
            "records": tuple(_renumbered(each) for each in layer.records),
        }
    )


def _renumbered(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record with the number 0 instead of its attempt's at the start of its id."""
    return {**record, "id": _ATTEMPT.sub(f"{ADOPTED}/", str(record["id"]), count=1)}
