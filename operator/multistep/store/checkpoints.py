"""Checkpoints of trials' environments on the volume: what each step changed, as one layer on top of the step before.

A checkpoint is a hidden directory of the trial's directory: ``.checkpoints/ATTEMPT-STEP/``, with the layer, its manifest and a
commit. The commit is written last and atomically: without it the checkpoint does not exist. Blocking code, except for Checkpoints.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import AsyncGenerator, Container, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from multistep.engine.room import Amount, Room
from multistep.errors import StoreError
from multistep.store import directory
from multistep.store.collecting import Collections
from multistep.store.directory import TrialDirectory
from multistep.store.disk import Disk
from multistep.store.key import TrialKey
from multistep.store.ledger import Collection
from multistep.store.spool import Spool
from multistep.store.tree import pread_all

_TOP: Final = ".checkpoints"
_COMMIT: Final = "commit.json"

Name = Literal["manifest", "layer"]
NAMES: Final[tuple[Name, ...]] = get_args(Name)
"""The files of a checkpoint, in the order in which they are restored."""


class Blob(BaseModel):
    """A stored file. size: in bytes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sha256: str
    size: int


class Commit(BaseModel):
    """A stored checkpoint.

    attempt, step: which attempt's step it follows, step as an index; digest: the runner's digest of the changes; files: the stored
    files; entries: number of changed and deleted paths; image_id: image of the container, as resolved by the kubelet; base: attempt
    and step of the checkpoint below it, None for the image itself; records: the runners' records of the steps since the base.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    attempt: int
    step: int
    digest: str
    files: dict[Name, Blob]
    entries: int
    image_id: str
    base: tuple[int, int] | None = None
    records: tuple[dict[str, Any], ...] = ()

    @property
    def id(self) -> tuple[int, int]:
        """Return the attempt and the step's index, which identify the checkpoint in its trial."""
        return self.attempt, self.step

    @property
    def bytes(self) -> int:
        """Return the size of the stored files in bytes."""
        return sum(each.size for each in self.files.values())


class Checkpoints:
    """The checkpoints of all trials."""

    def __init__(self, disk: Disk, collections: Collections) -> None:
        self._disk = disk
        self._collections = collections

    async def room(self, key: TrialKey, attempt: int, step: int) -> Room:
        """Return how many bytes a checkpoint may have, by the results limits of step, trial and namespace."""
        return await self._collections.room(key, Collection(attempt, step, "checkpoint"))

    async def keep(self, key: TrialKey, spools: Mapping[Name, Spool], commit: Commit) -> None:
        """Store a checkpoint, unless its trial has it already: a commit that exists wins over packing again."""
        for spool in spools.values():
            await spool.flush()
        fds = {name: spool.fileno() for name, spool in spools.items()}
        await self._disk.run(key, f"storing the checkpoint after step {commit.step + 1}", lambda to: _keep(to, fds, commit))
        used = Amount(commit.bytes, len(commit.files))
        await self._collections.take(key, Collection(commit.attempt, commit.step, "checkpoint"), used)

    async def last(self, key: TrialKey, image_id: str, failed: Container[str] = ()) -> tuple[tuple[Commit, ...], tuple[str, ...]]:
        """Return the layers of the last complete checkpoint for this image, lowest first, () without one; and why each later one is
        not used, a line for each. failed: digests of checkpoints that could not be restored."""
        return await self._disk.run(key, "reading checkpoints", lambda to: _last(to, image_id, failed))

    async def all(self, key: TrialKey) -> dict[tuple[int, int], Commit]:
        """Return the trial's checkpoints, by attempt and step."""
        return await self._disk.run(key, "reading checkpoints", lambda to: _commits(to.path / _TOP, []))

    async def chain(self, key: TrialKey, id: tuple[int, int]) -> tuple[Commit, ...]:
        """Return a checkpoint's layers, lowest first, unverified. Raises StoreError if one does not exist."""
        return await self._disk.run(key, "reading checkpoints", lambda to: chain_of(_commits(to.path / _TOP, []), id))

    async def contents(self, key: TrialKey, commit: Commit, name: Name) -> AsyncGenerator[bytes, None]:
        """Yield a file of a checkpoint in chunks."""
        async for chunk in self._disk.stream(key, _chunks(self._disk.path(key) / _place(commit.id) / name)):
            yield chunk

    async def remove(self, key: TrialKey) -> None:
        """Delete all checkpoints of a trial. Idempotent."""
        await self._disk.run(key, "deleting checkpoints", _remove)
        await self._collections.free_checkpoints(key)


def _place(id: tuple[int, int]) -> str:
    return f"{_TOP}/{id[0]}-{id[1]}"


def _keep(to: TrialDirectory, fds: Mapping[Name, int], commit: Commit) -> None:
    place = to.path / _place(commit.id)
    if (place / _COMMIT).exists():
        return
    shutil.rmtree(place, ignore_errors=True)
    directory.make(place)
    to.check()
    for name, fd in fds.items():
        _copy(fd, place / name)
    directory.write(place / _COMMIT, commit.model_dump_json().encode())
    directory.sync(place.parent)


def _copy(fd: int, path: Path) -> None:
    with path.open("xb") as file:
        file.writelines(pread_all(fd, 0, os.fstat(fd).st_size))
        file.flush()
        os.fsync(file.fileno())


def _last(to: TrialDirectory, image_id: str, failed: Container[str]) -> tuple[tuple[Commit, ...], tuple[str, ...]]:
    refused: list[str] = []
    commits = _commits(to.path / _TOP, refused)
    verified: set[tuple[int, int]] = set()
    for candidate in sorted(commits.values(), key=lambda each: (each.step, each.attempt), reverse=True):
        try:
            chain = chain_of(commits, candidate.id)
            check(chain, image_id, failed)
            for each in chain:
                if each.id not in verified:
                    _verify(to.path / _place(each.id), each)
                    verified.add(each.id)
        except StoreError as error:
            refused.append(f"the checkpoint after step {candidate.step + 1} of attempt {candidate.attempt} is not used: {error}")
            continue
        return chain, tuple(refused)
    return (), tuple(refused)


def _commits(top: Path, refused: list[str]) -> dict[tuple[int, int], Commit]:
    found = {}
    for path in sorted(top.glob(f"*/{_COMMIT}")):
        try:
            commit = Commit.model_validate_json(path.read_bytes())
        except ValidationError:
            refused.append(f"the checkpoint {path.parent.name} is not used: its commit is not readable")
            continue
        if _place(commit.id).rpartition("/")[2] == path.parent.name:
            found[commit.id] = commit
    return found


def chain_of(commits: dict[tuple[int, int], Commit], id: tuple[int, int]) -> tuple[Commit, ...]:
    """Return the layers of a checkpoint, lowest first. Raises StoreError if one is missing."""
    chain: list[Commit] = []
    below: tuple[int, int] | None = id
    while below is not None:
        if below not in commits or (chain and below[1] >= chain[-1].step):
            raise StoreError(f"the layer of step {below[1] + 1} of attempt {below[0]} is missing")
        chain.append(commits[below])
        below = chain[-1].base
    return tuple(reversed(chain))


def check(chain: Sequence[Commit], image_id: str, failed: Container[str]) -> None:
    """Raise StoreError if a checkpoint is of another image, or contains one that could not be restored."""
    for each in chain:
        if each.image_id != image_id:
            raise StoreError(f"it was made in the image {each.image_id}, and this pod has {image_id}")
        if each.digest in failed:
            raise StoreError("it could not be restored")


def _verify(place: Path, commit: Commit) -> None:
    """Raise StoreError if a file of a checkpoint is not the one that was stored."""
    for name, stored in commit.files.items():
        what = f"its {name} of step {commit.step + 1}"
        try:
            with (place / name).open("rb") as file:
                size, sha256 = os.fstat(file.fileno()).st_size, hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise StoreError(f"{what} cannot be read: {error.strerror}") from error
        if size != stored.size:
            raise StoreError(f"{what} has {size} bytes instead of {stored.size}")
        if sha256 != stored.sha256:
            raise StoreError(f"{what} was changed")


def _chunks(path: Path) -> Generator[bytes, None, None]:
    with path.open("rb") as file:
        yield from pread_all(file.fileno(), 0, os.fstat(file.fileno()).st_size)


def _remove(to: TrialDirectory) -> None:
    to.check()
    shutil.rmtree(to.path / _TOP, ignore_errors=True)
