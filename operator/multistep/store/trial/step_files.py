"""Stores the files collected from a step in the trial's directory, with internal data about them. Blocking code."""

from __future__ import annotations

import json
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import asdict
from typing import Protocol

from multistep.api.task.task_toml import ArtifactConfig
from multistep.engine.journal.operations import Part
from multistep.errors import StoreError
from multistep.store.files import known_digests
from multistep.store.trial import directory
from multistep.store.trial.directory import TrialDirectory
from multistep.store.trial.unpack_download import Members, Pointer, Received, Unpacked, unpack
from multistep.store.trial.volume_usage import Collection, write_note
from multistep.store.trial.write_archive import picked_chunks

_MEMBERS, _POINTERS = "members", "pointers"  # names of hidden files with data about steps (see TrialDirectory.store_step_data)


class Step(Protocol):
    """The attributes of a step that the store needs; engine.plan.plan.StepPlan has them. directory: None for a single-step task."""

    @property
    def name(self) -> str: ...
    @property
    def index(self) -> int: ...
    @property
    def directory(self) -> str | None: ...
    @property
    def artifacts(self) -> tuple[ArtifactConfig, ...]: ...


def unpack_step(
    to: TrialDirectory,
    *,
    fd: int,
    attempt: int,
    step: Step,
    types: Sequence[str],
    part: Part,
    sent: Mapping[str, Pointer],
    received: Received,
) -> Unpacked:
    """Unpack a step's download into the trial's directory. fd: descriptor of the spooled file."""
    to.start_attempt(attempt)
    with to.work() as work:
        unpacked = unpack(fd, work, () if part == "verifier" else step.artifacts, types, part, sent, received)
        if unpacked.pointers or to.step_data(_POINTERS, attempt):
            pointers = {f"{_prefix(step)}{path}": asdict(each) for path, each in unpacked.pointers.items()}
            to.store_step_data(_POINTERS, attempt, step.index, json.dumps(pointers).encode())
        if part == "agent":
            members = [asdict(each) for each in unpacked.members]
            to.store_step_data(_MEMBERS, attempt, step.index, json.dumps(members).encode())
        if unpacked.digests:
            to.note(known_digests.NOTE, b"".join(unpacked.digests))
        if step.directory is not None and part == "all":
            to.put(work, f"steps/{step.directory}")
        else:
            for path in sorted(work.iterdir()):
                to.put(path, f"{_prefix(step)}{path.name}")
    to.log((f"step {step.name}: {note}" for note in unpacked.notes), time.time())
    write_note(to, Collection(attempt, step.index, part), unpacked.used)
    return unpacked


def pointers(to: TrialDirectory) -> dict[str, Pointer]:
    """Return the files that pods uploaded directly to the object store, by path in the results."""
    current, found = to.attempt(), dict[str, Pointer]()
    for attempt in range(1, current + 1):
        top = "" if attempt == current else f"{directory.ATTEMPTS}/{attempt}/"
        for data in to.step_data(_POINTERS, attempt).values():
            found |= {f"{top}{path}": Pointer(**each) for path, each in json.loads(data).items()}
    return found


def collected(to: TrialDirectory, attempt: int) -> set[int]:
    """Return the indexes of the steps whose files an attempt collected for a separate verifier."""
    return set(to.step_data(_MEMBERS, attempt))


def _prefix(step: Step) -> str:
    return "" if step.directory is None else f"steps/{step.directory}/"


def picked(to: TrialDirectory, attempt: int, step: Step, entry: int) -> Generator[bytes, None, None]:
    """Return a tar stream of one artifact entry's stored files. entry: its index. Raises StoreError if they were not collected."""
    data = to.step_data(_MEMBERS, attempt).get(step.index)
    if data is None:
        raise StoreError(f"the files collected in step {step.name!r} no longer exist")
    return picked_chunks(to.path / f"{_prefix(step)}artifacts", Members(**json.loads(data)[entry]).names())
