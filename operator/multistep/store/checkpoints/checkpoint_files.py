"""Checkpoints in a trial's directory: the changes of each step, as one layer on top of the step before. Blocking code.

A checkpoint is a hidden directory, ``.checkpoints/ATTEMPT-STEP/``, with the layer, its manifest and a commit. All three appear by
one rename: a checkpoint is complete or does not exist.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any, BinaryIO, Final, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from multistep.api.trial.status import ANOTHER_TRIAL, StepStatus, Tampering
from multistep.engine.journal.results_limits import Amount
from multistep.errors import StoreError
from multistep.store.files.file_trees import pread_all
from multistep.store.files.thread_pool import as_store_error
from multistep.store.trial import directory
from multistep.store.trial.directory import TrialDirectory
from multistep.store.trial.volume_usage import Collection, TrialUsage

TOP: Final = ".checkpoints"
_COMMIT: Final = "commit.json"
_DRAFT: Final = ".work-checkpoint-"
_KEPT: Final = "kept"  # an empty file beside the checkpoints that are kept with the results of a finished trial

CheckpointFile = Literal["manifest", "layer"]
CHECKPOINT_FILES: Final[tuple[CheckpointFile, ...]] = get_args(CheckpointFile)
"""The files of a checkpoint, in the order in which they are restored."""


class StoredFile(BaseModel):
    """A stored file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sha256: str
    size: int
    """Size in bytes."""


class BaseCheckpoint(BaseModel):
    """The checkpoint below another one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    attempt: int
    step: int
    digest: str
    """Digest of its commit."""

    @property
    def id(self) -> tuple[int, int]:
        """Return the attempt and the step's index."""
        return self.attempt, self.step


class CheckpointCommit(BaseModel):
    """A stored checkpoint."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    attempt: int
    step: int
    """attempt, step: the attempt and the index of the step that it follows."""
    manifest: str
    """The runner's digest of the changes."""
    files: dict[CheckpointFile, StoredFile]
    """The stored files."""
    entries: int
    """Number of changed and deleted paths."""
    image_id: str
    """Image of the container, as resolved by the kubelet."""
    base: BaseCheckpoint | None = None
    """The checkpoint below it, None for the image itself."""
    attempts: tuple[int, ...]
    """For each step since the base, the attempt that ran it."""
    records: tuple[dict[str, Any], ...] = ()
    """The runners' records of these steps."""
    steps: tuple[StepStatus, ...] = ()
    tampering: tuple[Tampering, ...] = ()
    """steps, tampering: the steps as in the trial's status, and the evidence of tampering found before their verification, for
    other trials that start from the checkpoint."""
    processes: int = 0
    """Number of processes that a restore loses."""
    shared_memory: bool = False
    """Whether a restore loses files in /dev/shm."""
    complete: bool = True
    """Whether the step has finished, so that its records are stored; a step's verifier may need the checkpoint earlier."""
    final: bool = False
    """Whether the trial finished with the step, so that none of its attempts resumes from the checkpoint."""
    digest: str = Field(default="", exclude=True)
    """SHA-256 of the stored commit. It covers the digests of all layers below, so it identifies the whole checkpoint."""

    @classmethod
    def read(cls, data: bytes) -> Self:
        """Return the commit that was stored as ``data``. Raises ValidationError."""
        return cls.model_validate_json(data).model_copy(update={"digest": hashlib.sha256(data).hexdigest()})

    def sealed(self) -> Self:
        """Return the commit with its digest."""
        return self.read(self.to_json())

    def to_json(self) -> bytes:
        """Return the commit as it is stored."""
        return self.model_dump_json().encode()

    @property
    def id(self) -> tuple[int, int]:
        """Return the attempt and the step's index, which identify the checkpoint in its trial."""
        return self.attempt, self.step

    @property
    def bytes(self) -> int:
        """Return the size of the stored files in bytes."""
        return sum(file.size for file in self.files.values())


@dataclass(frozen=True)
class StoredCheckpoints:
    """The checkpoints of a trial, by attempt and step."""

    commits: Mapping[tuple[int, int], CheckpointCommit]
    damaged: Mapping[tuple[int, int], str]
    """The reasons why the other checkpoints cannot be used."""


def path_of(id: tuple[int, int]) -> str:
    """Return the path of a checkpoint in its trial's directory."""
    return f"{TOP}/{id[0]}-{id[1]}"


def make_draft(to: TrialDirectory) -> Path:
    """Create a directory for a checkpoint that is being received."""
    to.check()
    for left in to.path.glob(f"{_DRAFT}*"):  # left by an operator that died: a trial has at most one draft
        shutil.rmtree(left, ignore_errors=True)
    path = to.path / f"{_DRAFT}{token_hex(8)}"
    directory.make_directory(path)
    return path


def create(path: Path) -> BinaryIO:
    """Create a file in the directory of a checkpoint that is being received."""
    with as_store_error(f"creating {path}"):
        return path.open("xb")


def publish(to: TrialDirectory, draft: Path, commit: CheckpointCommit) -> CheckpointCommit:
    """Publish a checkpoint by one rename, unless it exists. Return the stored commit. draft: directory with layer and manifest."""
    there = to.path / path_of(commit.id)
    if isinstance(kept := read(there), CheckpointCommit):
        return kept
    for name in commit.files:
        directory.sync_to_disk(draft / name)
    data = _encoded(commit)
    directory.write_file(draft / _COMMIT, data)
    to.put(draft, path_of(commit.id))
    directory.sync_to_disk(there.parent)
    return CheckpointCommit.read(data)


def complete(to: TrialDirectory, commit: CheckpointCommit) -> CheckpointCommit:
    """Replace the commit of a stored checkpoint; return the new commit with its digest."""
    data = _encoded(commit)
    to.check()
    directory.write_file(to.path / path_of(commit.id) / _COMMIT, data)
    return CheckpointCommit.read(data)


def _encoded(commit: CheckpointCommit) -> bytes:
    """Return the commit as it is stored. Raises StoreError if its records, which may be hostile, cannot be written as JSON."""
    try:
        return commit.to_json()
    except ValueError as error:
        raise StoreError(f"the records of the steps cannot be stored: {error}") from error


def stored(top: Path) -> StoredCheckpoints:
    """Return the checkpoints of a trial. top: the directory that has them."""
    commits, damaged = dict[tuple[int, int], CheckpointCommit](), dict[tuple[int, int], str]()
    for path in sorted(top.glob("*-*")):
        if (id := _id(path.name)) is None:
            continue
        match read(path):
            case CheckpointCommit() as commit:
                commits[id] = commit
            case str() as why:
                damaged[id] = why
    return StoredCheckpoints(commits, damaged)


def lineage(top: Path, id: tuple[int, int]) -> StoredCheckpoints:
    """Return the commits of a checkpoint and of all checkpoints below it. Their other files may be missing, if ``give_up`` deleted
    them. top: the directory that has the trial's checkpoints."""
    commits = dict[tuple[int, int], CheckpointCommit]()
    below: tuple[int, int] | None = id
    while below is not None and below not in commits:
        match _commit(top.parent / path_of(below)):
            case CheckpointCommit() as commit:
                commits[below], below = commit, commit.base.id if commit.base else None
            case str() as why:
                return StoredCheckpoints(commits, {below: why})
            case None:
                break
    return StoredCheckpoints(commits, {})


def read(path: Path) -> CheckpointCommit | str | None:
    """Return the commit of a stored checkpoint, or the reason why it cannot be used; None if it does not exist."""
    commit = _commit(path)
    return _damage(path, commit) or commit if isinstance(commit, CheckpointCommit) else commit


def _commit(path: Path) -> CheckpointCommit | str | None:
    """Return the same as ``read``, but without a check of layer and manifest."""
    try:
        commit = CheckpointCommit.read((path / _COMMIT).read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError:
        return "its commit is not readable"
    if commit.id != _id(path.name):
        return "its commit is that of another checkpoint"
    return commit


def _id(name: str) -> tuple[int, int] | None:
    attempt, _, step = name.partition("-")
    return (int(attempt), int(step)) if attempt.isdecimal() and step.isdecimal() else None


def _damage(place: Path, commit: CheckpointCommit) -> str:
    """Return which stored file is missing or has another size, "" if none. The runner compares the digests when it restores."""
    for name, blob in commit.files.items():
        try:
            size = (place / name).stat().st_size
        except FileNotFoundError:
            return f"its {name} is missing"
        if size != blob.size:
            return f"its {name} has {size} bytes instead of {blob.size}"
    return ""


def chunks(path: Path) -> Generator[bytes, None, None]:
    """Yield a file in chunks."""
    with path.open("rb") as file:
        yield from pread_all(file.fileno(), 0, os.fstat(file.fileno()).st_size)


def retain(to: TrialDirectory) -> None:
    """Mark the trial's checkpoints as kept with its results."""
    to.check()
    if (to.path / TOP).is_dir():
        (to.path / TOP / _KEPT).touch()


def give_up(to: TrialDirectory) -> None:
    """Delete layer and manifest of all checkpoints. The commits stay, because they have the records of steps that a resumed attempt
    does not run again."""
    to.check()
    ids = sorted((id for path in (to.path / TOP).glob("*-*") if (id := _id(path.name)) is not None), reverse=True)
    for id in ids:  # newest first: after a crash, a checkpoint that has files must not depend on one that has none
        for name in CHECKPOINT_FILES:
            (to.path / path_of(id) / name).unlink(missing_ok=True)


def discard(to: TrialDirectory, id: tuple[int, int]) -> bool:
    """Delete a checkpoint unless it is complete, and return whether it no longer exists."""
    to.check()
    path = to.path / path_of(id)
    if isinstance(commit := _commit(path), CheckpointCommit) and commit.complete:
        return False
    shutil.rmtree(path, ignore_errors=True)
    return not path.exists()


def remove(to: TrialDirectory, *, unless_kept: bool) -> bool:
    """Delete the trial's checkpoints, and return whether it has none left. unless_kept: keep them if ``retain`` marked them."""
    to.check()
    if unless_kept and (to.path / TOP / _KEPT).exists():
        return False
    shutil.rmtree(to.path / TOP, ignore_errors=True)
    return not (to.path / TOP).exists()


def usage(namespace: Path) -> Mapping[str, TrialUsage]:
    """Measure the checkpoints of all trials of a namespace, by the trial's path (NAME/UID). namespace: its directory."""
    usages: dict[str, dict[Collection | None, Amount]] = {}
    for path in namespace.glob(f"*/*/{TOP}/*-*"):
        if (id := _id(path.name)) is not None:
            sizes = [file.stat().st_size for file in path.iterdir() if file.name in CHECKPOINT_FILES]
            trial = f"{path.parents[2].name}/{path.parents[1].name}"
            usages.setdefault(trial, {})[Collection(*id, "all")] = Amount(sum(sizes), len(sizes))
    return usages


ADOPTED: Final = ANOTHER_TRIAL  # attempt number of the copies
_ATTEMPT = re.compile(r"\d+/")


def adopt(to: TrialDirectory, source: Path, chain: Sequence[CheckpointCommit]) -> list[CheckpointCommit]:
    """Copy the layers of a checkpoint, lowest first, and return the copies. source: directory of the trial that has the layers.

    Idempotent: an equal copy that exists stays, a different one is replaced. A copy differs if the operator stopped before it made
    all copies, and the source trial then ran the step again.
    """
    copies: list[CheckpointCommit] = []
    for layer in chain:
        copy = adopted(layer, copies[-1] if copies else None, source.parent.name).sealed()
        if read(to.path / path_of(copy.id)) != copy:
            _copy(to, source / path_of(layer.id), copy)
        copies.append(copy)
    return copies


def _copy(to: TrialDirectory, layer: Path, commit: CheckpointCommit) -> None:
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


def adopted(layer: CheckpointCommit, below: CheckpointCommit | None, trial: str) -> CheckpointCommit:
    """Return the commit of a layer's copy, with attempt number 0 in the commit and in its records. below: the copy of the layer
    below.

    trial: name of the trial that has the layer. Steps that it copied from a third trial keep the name of the trial that ran them.
    """
    base = BaseCheckpoint(attempt=ADOPTED, step=below.step, digest=below.digest) if below is not None else None
    return layer.model_copy(
        update={
            "attempt": ADOPTED,
            "final": False,  # the other trial can continue after the step at which the source trial finished
            "base": base,
            "attempts": (ADOPTED,) * len(layer.attempts),
            "steps": tuple(step.model_copy(update={"trial": step.trial or trial}) for step in layer.steps),
            "records": tuple(_renumbered(record) for record in layer.records),
        }
    )


def _renumbered(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record whose id names attempt 0 instead of the attempt that made the record."""
    return {**record, "id": _ATTEMPT.sub(f"{ADOPTED}/", str(record["id"]), count=1)}
