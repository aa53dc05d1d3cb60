"""Copies checkpoints of one trial to another trial, which then continues from them or verifies them. Blocking code.

The copies have the attempt number 0, because a trial's own attempts start at 1. The files are hard links: nothing changes a
checkpoint's files, and each trial's checkpoints can be deleted separately.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from multistep.api.trial.step_runs import ANOTHER_TRIAL
from multistep.store.checkpoints.checkpoint_files import Base, Commit, path_of, publish, read
from multistep.store.trial.directory import TrialDirectory

ADOPTED: Final = ANOTHER_TRIAL  # attempt number of the copies
_ATTEMPT = re.compile(r"\d+/")


def adopt(to: TrialDirectory, source: Path, chain: Sequence[Commit]) -> list[Commit]:
    """Copy the layers of a checkpoint, lowest first, and return the copies. source: directory of the trial that has the layers.

    Idempotent: an equal copy that exists stays, a different one is replaced. A copy differs if the operator stopped before it made
    all copies, and the source trial then ran the step again.
    """
    copies: list[Commit] = []
    for layer in chain:
        copy = adopted(layer, copies[-1] if copies else None, source.parent.name).sealed()
        if read(to.path / path_of(copy.id)) != copy:
            _copy(to, source / path_of(layer.id), copy)
        copies.append(copy)
    return copies


def _copy(to: TrialDirectory, layer: Path, commit: Commit) -> None:
    with to.work() as work:
        draft = work / "checkpoint"
        draft.mkdir()
        for name in commit.files:
            _link(layer / name, draft / name)
        to.check()
        shutil.rmtree(to.path / path_of(commit.id), ignore_errors=True)
        publish(to, draft, commit)


def _link(file: Path, copy: Path) -> None:
    try:
        os.link(file, copy)
    except FileNotFoundError:
        raise
    except OSError:  # a file system without hard links, or too many links to one file
        shutil.copyfile(file, copy)


def adopted(layer: Commit, below: Commit | None, trial: str) -> Commit:
    """Return the commit of a layer's copy, with attempt number 0 in the commit and in its records. below: the copy of the layer
    below.

    trial: name of the trial that has the layer. Steps that it copied from a third trial keep the name of the trial that ran them.
    """
    base = Base(attempt=ADOPTED, step=below.step, digest=below.digest) if below is not None else None
    return layer.model_copy(
        update={
            "attempt": ADOPTED,
            "final": False,  # the other trial can continue after the step at which the source trial finished
            "base": base,
            "attempts": (ADOPTED,) * len(layer.attempts),
            "steps": tuple(each.model_copy(update={"trial": each.trial or trial}) for each in layer.steps),
            "records": tuple(_renumbered(each) for each in layer.records),
        }
    )


def _renumbered(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record whose id names attempt 0 instead of the attempt that made the record."""
    return {**record, "id": _ATTEMPT.sub(f"{ADOPTED}/", str(record["id"]), count=1)}
