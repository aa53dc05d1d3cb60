"""Checkpoints of trials' environments on the volume: what each step changed, as one layer on top of the step before.

A checkpoint is a hidden directory of the trial's directory: ``.checkpoints/ATTEMPT-STEP/``, with the layer, its manifest and a
commit. The commit is written last and atomically: without it the checkpoint does not exist. Blocking code, except for Checkpoints.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from secrets import token_hex
from typing import Any, BinaryIO, Final, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from multistep.engine.room import Amount, Limits, Room
from multistep.errors import StoreError
from multistep.store import directory
from multistep.store.directory import TrialDirectory
from multistep.store.disk import Disk
from multistep.store.key import TrialKey
from multistep.store.ledger import Admission, Collection, Ledger, Usage
from multistep.store.spool import Spool
from multistep.store.threads import as_store_error
from multistep.store.tree import pread_all

TOP: Final = ".checkpoints"
_COMMIT: Final = "commit.json"
_DRAFT: Final = ".work-checkpoint-"
_KEPT: Final = "kept"  # an empty file beside the checkpoints that are kept with the results of a finished trial
_MANIFEST_BYTES: Final = 1 << 30  # of at most 500,000 entries

Name = Literal["manifest", "layer"]
NAMES: Final[tuple[Name, ...]] = get_args(Name)
"""The files of a checkpoint, in the order in which they are restored."""


class Blob(BaseModel):
    """A stored file. size: in bytes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sha256: str
    size: int


class Base(BaseModel):
    """The checkpoint below another one. digest: of its commit."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    attempt: int
    step: int
    digest: str

    @property
    def id(self) -> tuple[int, int]:
        """Return the attempt and the step's index."""
        return self.attempt, self.step


class Commit(BaseModel):
    """A stored checkpoint.

    attempt, step: which attempt's step it follows, step as an index; manifest: the runner's digest of the changes; files: the
    stored files; entries: number of changed and deleted paths; image_id: image of the container, as resolved by the kubelet; base:
    the checkpoint below it, None for the image itself; attempts: which attempt ran each step since the base; records: the runners'
    records of these steps; processes: number of processes that a restore loses; shared_memory: whether it loses files in /dev/shm.
    complete: whether the step had ended, so that the records are there; a step's verifier needs its checkpoint before.
    digest: SHA-256 of all this as it is stored. It identifies the whole checkpoint, as it covers the digests of all layers below.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    attempt: int
    step: int
    manifest: str
    files: dict[Name, Blob]
    entries: int
    image_id: str
    base: Base | None = None
    attempts: tuple[int, ...]
    records: tuple[dict[str, Any], ...] = ()
    processes: int = 0
    shared_memory: bool = False
    complete: bool = True
    digest: str = Field(default="", exclude=True)

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
        return sum(each.size for each in self.files.values())


@dataclass(frozen=True)
class Stored:
    """The checkpoints of a trial, by attempt and step; and those that cannot be used, each with the reason."""

    commits: Mapping[tuple[int, int], Commit]
    damaged: Mapping[tuple[int, int], str]


@dataclass(frozen=True)
class Draft:
    """A checkpoint that is being received. path: its temporary directory."""

    path: Path
    spools: Mapping[Name, Spool]


class Checkpoints:
    """The checkpoints of all trials. They have limits of their own, so that they use no room of the results."""

    def __init__(self, disk: Disk, limits: Limits) -> None:
        self._disk = disk
        self._ledger = Ledger(limits)

    def close(self) -> None:
        """Reject further calls; calls that already run continue to their end."""
        self._disk.close()

    async def most(self, key: TrialKey, attempt: int, step: int) -> int:
        """Return how many bytes a checkpoint may have at most, if no other trial had any."""
        await self._read_usage(key.namespace)
        return self._ledger.alone(key.namespace, _trial(key), Collection(attempt, step, "all")).bytes

    async def room(self, key: TrialKey, attempt: int, step: int) -> Room:
        """Return how many bytes a checkpoint may have, by the limits of trial and namespace."""
        await self._read_usage(key.namespace)
        return self._ledger.room(key.namespace, _trial(key), Collection(attempt, step, "all"))

    @asynccontextmanager
    async def draft(self, key: TrialKey, room: Room) -> AsyncIterator[Draft]:
        """Create temporary files for a checkpoint. Writes beyond ``room`` raise CollectionCut."""
        path = await self._disk.run(key, "creating a checkpoint", _make_draft)
        admission = Admission(self._ledger, key.namespace, replace(room, files=0))
        try:
            async with AsyncExitStack() as stack:
                spools: dict[Name, Spool] = {}
                for name in NAMES:
                    file = await self._disk.threads.run(_create, path / name)
                    stack.push_async_callback(self._disk.threads.run, file.close)
                    limit = _MANIFEST_BYTES if name == "manifest" else None
                    spools[name] = Spool(key, file, self._disk.threads, limit, admission.admit)
                yield Draft(path, spools)
        finally:
            admission.close()
            await self._disk.threads.run(shutil.rmtree, path, True)

    async def keep(self, key: TrialKey, draft: Draft, commit: Commit) -> Commit:
        """Store a checkpoint, and return it with its digest. If the trial has it already, that one stays and is returned: a commit
        that exists wins over packing again."""
        for spool in draft.spools.values():
            await spool.flush()
        kept = await self._disk.run(
            key, f"storing the checkpoint after step {commit.step + 1}", lambda to: _keep(to, draft, commit)
        )
        await self._read_usage(key.namespace)
        used = Amount(kept.bytes, len(kept.files))
        self._ledger.take(key.namespace, _trial(key), Collection(kept.attempt, kept.step, "all"), used)
        return kept

    async def complete(self, key: TrialKey, commit: Commit) -> Commit:
        """Replace the commit of a stored checkpoint by the complete one, and return it with its digest."""
        return await self._disk.run(key, "completing a checkpoint", lambda to: _replace(to, commit))

    async def stored(self, key: TrialKey) -> Stored:
        """Return the trial's checkpoints. Raises StoreError if they cannot be read now."""
        return await self._disk.run(key, "reading checkpoints", lambda to: _stored(to.path / TOP))

    async def contents(self, key: TrialKey, commit: Commit, name: Name) -> AsyncGenerator[bytes, None]:
        """Yield a file of a checkpoint in chunks."""
        async for chunk in self._disk.stream(key, _chunks(self._disk.path(key) / _place(commit.id) / name)):
            yield chunk

    async def retain(self, key: TrialKey) -> None:
        """Keep the checkpoints of a finished trial as long as its results, also when the trial is deleted. Idempotent."""
        await self._disk.run(key, "keeping checkpoints", _retain)

    async def remove(self, key: TrialKey, *, unless_kept: bool = False) -> None:
        """Delete all checkpoints of a trial. unless_kept: not those that ``retain`` keeps. Idempotent."""
        await self._read_usage(key.namespace)
        if await self._disk.run(key, "deleting checkpoints", lambda to: _remove(to, unless_kept=unless_kept)):
            self._ledger.free(key.namespace, _trial(key))

    def forget(self, key: TrialKey) -> None:
        """Stop counting the checkpoints of a trial whose directory was deleted."""
        self._ledger.free(key.namespace, _trial(key))

    async def _read_usage(self, namespace: str) -> None:
        if not self._ledger.knows(namespace):
            self._ledger.read(namespace, await self._disk.of_root(lambda: _usage(self._disk.root / namespace)))


def _trial(key: TrialKey) -> str:
    return f"{key.name}/{key.uid}"


def _place(id: tuple[int, int]) -> str:
    return f"{TOP}/{id[0]}-{id[1]}"


def _make_draft(to: TrialDirectory) -> Path:
    to.check()
    for left in to.path.glob(f"{_DRAFT}*"):  # by an operator that died: nothing else is received from this trial now
        shutil.rmtree(left, ignore_errors=True)
    path = to.path / f"{_DRAFT}{token_hex(8)}"
    directory.make(path)
    return path


def _create(path: Path) -> BinaryIO:
    with as_store_error(f"creating {path}"):
        return path.open("xb")


def _keep(to: TrialDirectory, draft: Draft, commit: Commit) -> Commit:
    """Publish layer, manifest and commit by one rename, unless the trial has the checkpoint."""
    place = to.path / _place(commit.id)
    if isinstance(there := _read(place), Commit):
        return there
    for spool in draft.spools.values():
        os.fsync(spool.fileno())
    data = _encoded(commit)
    directory.write(draft.path / _COMMIT, data)
    to.put(draft.path, _place(commit.id))
    directory.sync(place.parent)
    return Commit.read(data)


def _replace(to: TrialDirectory, commit: Commit) -> Commit:
    data = _encoded(commit)
    to.check()
    directory.write(to.path / _place(commit.id) / _COMMIT, data)
    return Commit.read(data)


def _encoded(commit: Commit) -> bytes:
    """Return the commit as it is stored. Raises StoreError for records that are no JSON, which a hostile environment may have."""
    try:
        return commit.to_json()
    except ValueError as error:
        raise StoreError(f"the records of the steps cannot be stored: {error}") from error


def _stored(top: Path) -> Stored:
    commits, damaged = dict[tuple[int, int], Commit](), dict[tuple[int, int], str]()
    for path in sorted(top.glob("*-*")):
        if (id := _id(path.name)) is None:
            continue
        match _read(path):
            case Commit() as commit:
                commits[id] = commit
            case str() as why:
                damaged[id] = why
    return Stored(commits, damaged)


def _read(path: Path) -> Commit | str | None:
    """Return a stored checkpoint, why it cannot be used, or None if there is none."""
    try:
        commit = Commit.read((path / _COMMIT).read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError:
        return "its commit is not readable"
    if commit.id != _id(path.name):
        return "its commit is that of another checkpoint"
    return _damage(path, commit) or commit


def _id(name: str) -> tuple[int, int] | None:
    attempt, _, step = name.partition("-")
    return (int(attempt), int(step)) if attempt.isdecimal() and step.isdecimal() else None


def _damage(place: Path, commit: Commit) -> str:
    """Return why a stored file cannot be the one that was stored, "" if it can. The runner compares digests when it restores."""
    for name, stored in commit.files.items():
        try:
            size = (place / name).stat().st_size
        except FileNotFoundError:
            return f"its {name} is missing"
        if size != stored.size:
            return f"its {name} has {size} bytes instead of {stored.size}"
    return ""


def _chunks(path: Path) -> Generator[bytes, None, None]:
    with path.open("rb") as file:
        yield from pread_all(file.fileno(), 0, os.fstat(file.fileno()).st_size)


def _retain(to: TrialDirectory) -> None:
    to.check()
    if (to.path / TOP).is_dir():
        (to.path / TOP / _KEPT).touch()


def _remove(to: TrialDirectory, *, unless_kept: bool) -> bool:
    to.check()
    if unless_kept and (to.path / TOP / _KEPT).exists():
        return False
    shutil.rmtree(to.path / TOP, ignore_errors=True)
    return not (to.path / TOP).exists()


def _usage(namespace: Path) -> Mapping[str, Usage]:
    """Measure the checkpoints of all trials of a namespace, by the trial's path (NAME/UID). namespace: its directory."""
    found: dict[str, dict[Collection | None, Amount]] = {}
    for path in namespace.glob(f"*/*/{TOP}/*-*"):
        if (id := _id(path.name)) is not None:
            sizes = [each.stat().st_size for each in path.iterdir() if each.name in NAMES]
            trial = f"{path.parents[2].name}/{path.parents[1].name}"
            found.setdefault(trial, {})[Collection(*id, "all")] = Amount(sum(sizes), len(sizes))
    return found
