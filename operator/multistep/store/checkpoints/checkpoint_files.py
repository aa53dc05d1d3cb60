"""Writes and reads the checkpoints in a trial's directory. Its functions block.

A checkpoint is a hidden directory, ``.checkpoints/ATTEMPT-STEP/``, with the layer (the step's changes to files), the layer's
manifest and a commit. A rename makes all three appear at once, so a checkpoint is complete or does not exist.
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
_KEPT: Final = "kept"  # an empty file that marks checkpoints to keep with the results of a finished trial

CheckpointFile = Literal["manifest", "layer"]
CHECKPOINT_FILES: Final[tuple[CheckpointFile, ...]] = get_args(CheckpointFile)
"""Names of a checkpoint's files, in the order in which they are restored."""


class StoredFile(BaseModel):
    """Digest and size of a checkpoint's file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sha256: str
    size: int
    """Size in bytes."""


class BaseCheckpoint(BaseModel):
    """The checkpoint on which another one is based."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    attempt: int
    step: int
    digest: str
    """Digest of the checkpoint's commit."""

    @property
    def id(self) -> tuple[int, int]:
        """The attempt and the step's index."""
        return self.attempt, self.step


class CheckpointCommit(BaseModel):
    """Describes a stored checkpoint."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    attempt: int
    step: int
    """Index of the step after which the checkpoint was made."""
    manifest: str
    """The digest of the changes, as the runner reported it."""
    files: dict[CheckpointFile, StoredFile]
    entries: int
    """Number of changed and deleted paths."""
    image_id: str
    """The container's image ID, as the kubelet resolved it."""
    base: BaseCheckpoint | None = None
    """The checkpoint on which this one is based, or None if that is the image itself."""
    attempts: tuple[int, ...]
    """The attempt that ran each step since the base."""
    records: tuple[dict[str, Any], ...] = ()
    """The runner's records of the steps since the base."""
    steps: tuple[StepStatus, ...] = ()
    """The steps as in the trial's status."""
    tampering: tuple[Tampering, ...] = ()
    """Evidence of tampering that was found before the steps were verified. With ``steps``, it lets another trial start from the
    checkpoint."""
    processes: int = 0
    """Number of processes that a restore loses."""
    shared_memory: bool = False
    """Whether a restore loses files in /dev/shm."""
    complete: bool = True
    """Whether the step has finished and its records are stored. A verifier may need the checkpoint before."""
    final: bool = False
    """Whether this was the trial's last step, so that no attempt of the trial resumes from the checkpoint."""
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
        """The attempt and the step's index, which identify the checkpoint in its trial."""
        return self.attempt, self.step

    @property
    def bytes(self) -> int:
        """Total size of the stored files in bytes."""
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
    """Create and return a directory for a checkpoint that the operator receives."""
    to.check()
    for left in to.path.glob(f"{_DRAFT}*"):  # a trial has at most one draft, so an operator that crashed left these
        shutil.rmtree(left, ignore_errors=True)
    path = to.path / f"{_DRAFT}{token_hex(8)}"
    directory.make_directory(path)
    return path


def create(path: Path) -> BinaryIO:
    """Create a file in the directory that ``make_draft`` returned."""
    with as_store_error(f"creating {path}"):
        return path.open("xb")


def publish(to: TrialDirectory, draft: Path, commit: CheckpointCommit) -> CheckpointCommit:
    """Store a checkpoint, unless it is already stored, by renaming ``draft``, the directory with the layer and the manifest. Return
    the stored commit."""
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
    """Replace the commit of a stored checkpoint, and return the new commit with its digest."""
    data = _encoded(commit)
    to.check()
    directory.write_file(to.path / path_of(commit.id) / _COMMIT, data)
    return CheckpointCommit.read(data)


def _encoded(commit: CheckpointCommit) -> bytes:
    """Return the commit as JSON. Raises StoreError if its records, which come from the container, cannot be encoded."""
    try:
        return commit.to_json()
    except ValueError as error:
        raise StoreError(f"the records of the steps cannot be stored: {error}") from error


def stored(top: Path) -> StoredCheckpoints:
    """Return the checkpoints in the directory ``top``."""
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
    """Return the commits of a checkpoint in the directory ``top`` and of all checkpoints below it. Their layers may be missing,
    because ``give_up`` deletes them."""
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
    """Return the commit of a stored checkpoint, a text if the checkpoint cannot be used, or None if it does not exist."""
    commit = _commit(path)
    return _damage(path, commit) or commit if isinstance(commit, CheckpointCommit) else commit


def _commit(path: Path) -> CheckpointCommit | str | None:
    """Do the same as ``read``, but without checking layer and manifest."""
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
    """Return a text if a stored file is missing or has another size, or "". The runner compares the digests when it restores."""
    for name, blob in commit.files.items():
        try:
            size = (place / name).stat().st_size
        except FileNotFoundError:
            return f"its {name} is missing"
        if size != blob.size:
            return f"its {name} has {size} bytes instead of {blob.size}"
    return ""


def chunks(path: Path) -> Generator[bytes, None, None]:
    """Yield the contents of a file in chunks."""
    with path.open("rb") as file:
        yield from pread_all(file.fileno(), 0, os.fstat(file.fileno()).st_size)


def retain(to: TrialDirectory) -> None:
    """Mark the trial's checkpoints as kept with its results."""
    to.check()
    if (to.path / TOP).is_dir():
        (to.path / TOP / _KEPT).touch()


def give_up(to: TrialDirectory) -> None:
    """Delete the layers and the manifests of all checkpoints. The commits stay, because a resumed attempt needs their records of
    the steps that it does not run again."""
    to.check()
    ids = sorted((id for path in (to.path / TOP).glob("*-*") if (id := _id(path.name)) is not None), reverse=True)
    for id in ids:  # the newest is first, so that after a crash no checkpoint that has files depends on one without
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
    """Delete the trial's checkpoints, and return whether none is left. With ``unless_kept``, do nothing if ``retain`` marked
    them."""
    to.check()
    if unless_kept and (to.path / TOP / _KEPT).exists():
        return False
    shutil.rmtree(to.path / TOP, ignore_errors=True)
    return not (to.path / TOP).exists()


def usage(namespace: Path) -> Mapping[str, TrialUsage]:
    """Return the size of the checkpoints of all trials in a namespace's directory, by the trial's path (NAME/UID)."""
    usages: dict[str, dict[Collection | None, Amount]] = {}
    for path in namespace.glob(f"*/*/{TOP}/*-*"):
        if (id := _id(path.name)) is not None:
            sizes = [file.stat().st_size for file in path.iterdir() if file.name in CHECKPOINT_FILES]
            trial = f"{path.parents[2].name}/{path.parents[1].name}"
            usages.setdefault(trial, {})[Collection(*id, "all")] = Amount(sum(sizes), len(sizes))
    return usages


ADOPTED: Final = ANOTHER_TRIAL  # attempt number of checkpoints that are copied from another trial
_ATTEMPT = re.compile(r"\d+/")


def adopt(to: TrialDirectory, source: Path, chain: Sequence[CheckpointCommit]) -> list[CheckpointCommit]:
    """Copy the layers of a checkpoint, lowest first, from the trial's directory ``source``, and return the copies.

    The call is idempotent. A copy that exists stays if it is equal, and is replaced otherwise. It differs if the operator stopped
    before it had copied all layers, and the source trial then ran the step again.
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
    except OSError:  # the file system has no hard links, or the file has too many
        shutil.copyfile(file, copy)


def adopted(layer: CheckpointCommit, below: CheckpointCommit | None, trial: str) -> CheckpointCommit:
    """Return the commit of a layer's copy, with attempt number 0 in the commit and in its records.

    ``below`` is the copy of the layer below. ``trial`` is the name of the trial that has the layer. Steps that this trial itself
    copied from a third trial keep the name of the third trial.
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
    """Return a record whose id names attempt 0 instead of the attempt that ran the phase."""
    return {**record, "id": _ATTEMPT.sub(f"{ADOPTED}/", str(record["id"]), count=1)}
