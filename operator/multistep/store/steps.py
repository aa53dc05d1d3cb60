"""Stores the files collected from a step in the trial's directory, with internal data about them. Blocking code."""

from __future__ import annotations

import json
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import asdict
from typing import Protocol

from multistep.api.task_toml import ArtifactConfig
from multistep.engine.operations import Part
from multistep.errors import StoreError
from multistep.store import digests, directory
from multistep.store.archive import picked_chunks
from multistep.store.directory import TrialDirectory
from multistep.store.keep import Kept, Members, Pointer, Received, keep
from multistep.store.ledger import Collection, write_note

_MEMBERS, _POINTERS = "members", "pointers"  # names of hidden files with data about steps (see TrialDirectory.keep)


class Step(Protocol):
    """The attributes of a step that the store needs; engine.plan.StepPlan has them. directory: None for a single-step task."""

    @property
    def name(self) -> str: ...
    @property
    def index(self) -> int: ...
    @property
    def directory(self) -> str | None: ...
    @property
    def artifacts(self) -> tuple[ArtifactConfig, ...]: ...


def keep_step(
    to: TrialDirectory,
    *,
    fd: int,
    attempt: int,
    step: Step,
    types: Sequence[str],
    part: Part,
    sent: Mapping[str, Pointer],
    received: Received,
) -> Kept:
    """Unpack a step's download into the trial's directory. fd: descriptor of the spooled file."""
    to.start_attempt(attempt)
    with to.work() as work:
        kept = keep(fd, work, () if part == "verifier" else step.artifacts, types, part, sent, received)
        if kept.pointers or to.kept(_POINTERS, attempt):
            pointers = {f"{_place(step)}{path}": asdict(each) for path, each in kept.pointers.items()}
            to.keep(_POINTERS, attempt, step.index, json.dumps(pointers).encode())
        if part == "agent":
            members = [asdict(each) for each in kept.members]
            to.keep(_MEMBERS, attempt, step.index, json.dumps(members).encode())
        if kept.digests:
            to.note(digests.NOTE, b"".join(kept.digests))
        if step.directory is not None and part == "all":
            to.put(work, f"steps/{step.directory}")
        else:
            for path in sorted(work.iterdir()):
                to.put(path, f"{_place(step)}{path.name}")
    to.log((f"step {step.name}: {note}" for note in kept.notes), time.time())
    write_note(to, Collection(attempt, step.index, part), kept.used)
    return kept


def pointers(to: TrialDirectory) -> dict[str, Pointer]:
    """Return the files that pods uploaded directly to the object store, by path in the results."""
    current, found = to.attempt(), dict[str, Pointer]()
    for attempt in range(1, current + 1):
        top = "" if attempt == current else f"{directory.ATTEMPTS}/{attempt}/"
        for data in to.kept(_POINTERS, attempt).values():
            found |= {f"{top}{path}": Pointer(**each) for path, each in json.loads(data).items()}
    return found


def _place(step: Step) -> str:
    return "" if step.directory is None else f"steps/{step.directory}/"


def picked(to: TrialDirectory, attempt: int, step: Step, entry: int) -> Generator[bytes, None, None]:
    """Return a tar stream of one artifact entry's stored files. entry: its index. Raises StoreError if they were not collected."""
    kept = to.kept(_MEMBERS, attempt).get(step.index)
    if kept is None:
        raise StoreError(f"the files collected in step {step.name!r} no longer exist")
    return picked_chunks(to.path / f"{_place(step)}artifacts", Members(**json.loads(kept)[entry]).names())
