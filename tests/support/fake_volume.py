"""A results volume in memory with the calls of results_volume.ResultsVolume that the reconciler uses, and with fault points."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from multistep.engine.journal.journal import Collected
from multistep.engine.journal.operations import LOGS, Part
from multistep.engine.journal.results_limits import Headroom, SentFile
from multistep.errors import StoreError
from multistep.store.bucket.upload_results import PresignedUpload
from multistep.store.checkpoints.checkpoint_files import (
    CHECKPOINT_FILES,
    CheckpointCommit,
    CheckpointFile,
    StoredCheckpoints,
    adopted,
)
from multistep.store.evidence.file_list import ListDigests
from multistep.store.files.trial_key import TrialKey
from multistep.store.history import Place
from multistep.store.trial.collect_files import CollectedStep
from multistep.store.trial.collect_files import StoredVerifierData as StoredSteps
from multistep.store.trial.unpack_download import DownloadFacts, UploadedObject
from multistep.store.trial.volume_usage import Collection
from tests.support.builds import FakeBuildLogs
from tests.support.faults import Faults


@dataclass
class FakeSpool:
    """The spool file of a download, in memory."""

    data: bytearray = field(default_factory=bytearray)

    async def write(self, data: bytes) -> None:
        self.data += data


@dataclass
class Results:
    """The stored results of one trial.

    steps: digest of the files collected from a step, by STEP (STEP/PART if its verifier is separate). earlier: the `steps` of
    earlier attempts, by attempt. tokens: token records, by step. records: records of separate verifiers, by attempt and step.
    indexes: indexes of steps, by name. shipped: number of uploads to the object store. evidence: the unsigned statement about the
    results, parsed from JSON.
    """

    attempt: int = 0
    steps: dict[str, str] = field(default_factory=dict)
    earlier: dict[int, dict[str, str]] = field(default_factory=dict)
    tokens: dict[str, bytes] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    directories: list[str] = field(default_factory=list)
    records: dict[tuple[int, str], list[Any]] = field(default_factory=dict)
    indexes: dict[str, int] = field(default_factory=dict)
    log: set[str] = field(default_factory=set)
    redacted: set[str] = field(default_factory=set)
    shipped: int = 0
    evidence: Mapping[str, Any] = field(default_factory=dict)
    pointers: dict[str, dict[str, UploadedObject]] = field(default_factory=dict)
    checkpoints: dict[tuple[int, int], tuple[CheckpointCommit, dict[CheckpointFile, bytes]]] = field(default_factory=dict)
    retained: bool = False
    key: TrialKey | None = None

    def start_attempt(self, attempt: int, kept: Sequence[str] = ()) -> None:
        assert attempt >= self.attempt, "an earlier attempt after a later one"
        if attempt > self.attempt > 0:
            stay = {place: digest for place, digest in self.steps.items() if place.partition("/")[0] in kept}
            self.earlier[self.attempt] = {place: digest for place, digest in self.steps.items() if place not in stay}
            self.steps = stay
        self.attempt = attempt


@dataclass
class FakeDraft:
    """A checkpoint that is being received, in memory."""

    spools: dict[CheckpointFile, FakeSpool] = field(default_factory=lambda: {name: FakeSpool() for name in CHECKPOINT_FILES})


class FakeCheckpoints:
    """The checkpoints on a FakeVolume. A checkpoint whose layer was lost has an empty layer."""

    def __init__(self, volume: FakeVolume) -> None:
        self._volume = volume

    async def headroom(self, key: TrialKey, attempt: int, step: int) -> Headroom:
        self._volume.faults.point("volume checkpoint room")
        return Headroom(self._volume.checkpoint_bytes, 1000, "namespace")

    @asynccontextmanager
    async def draft(self, key: TrialKey, headroom: Headroom) -> AsyncIterator[FakeDraft]:
        self._volume.faults.point("volume draft")
        if self._volume.broken:
            raise StoreError("no space left on device")
        yield FakeDraft()

    async def most(self, key: TrialKey, attempt: int, step: int) -> int:
        used = sum(len(each) for _, files in self._volume._of(key).checkpoints.values() for each in files.values())
        return max(0, self._volume.most_bytes - used)

    async def store(self, key: TrialKey, draft: FakeDraft, commit: CheckpointCommit) -> CheckpointCommit:
        with self._volume._write(f"checkpoint {commit.attempt} {commit.step}"):
            files = {name: bytes(spool.data) for name, spool in draft.spools.items()}
            return self._volume._of(key).checkpoints.setdefault(commit.id, (commit.sealed(), files))[0]

    async def complete(self, key: TrialKey, commit: CheckpointCommit) -> CheckpointCommit:
        with self._volume._write(f"complete {commit.attempt} {commit.step}"):
            stored = self._volume._of(key).checkpoints
            stored[commit.id] = (commit.sealed(), stored[commit.id][1])
            return stored[commit.id][0]

    async def stored(self, key: TrialKey) -> StoredCheckpoints:
        self._volume.faults.point("volume checkpoints")
        found = self._volume._of(key).checkpoints
        damaged = {id: "its layer is missing" for id, (_, files) in found.items() if not files["layer"]}
        return StoredCheckpoints({id: commit for id, (commit, _) in found.items() if id not in damaged}, damaged)

    async def lineage(self, key: TrialKey, id: tuple[int, int]) -> StoredCheckpoints:
        self._volume.faults.point("volume lineage")
        found, below = self._volume._of(key).checkpoints, [id]
        while (commit := found.get(below[-1], (None,))[0]) is not None and commit.base is not None:
            below.append(commit.base.id)
        return StoredCheckpoints({each: found[each][0] for each in below if each in found}, {})

    async def give_up(self, key: TrialKey) -> None:
        with self._volume._write("give up checkpoints"):
            for commit, _ in self._volume._of(key).checkpoints.values():
                self._volume._of(key).checkpoints[commit.id] = commit, {"layer": b"", "manifest": b""}

    async def contents(self, key: TrialKey, commit: CheckpointCommit, name: CheckpointFile) -> AsyncGenerator[bytes, None]:
        self._volume.faults.point(f"volume {name} of {commit.id}")
        yield self._volume._of(key).checkpoints[commit.id][1][name]

    async def adopt(self, key: TrialKey, source: TrialKey, chain: Sequence[CheckpointCommit]) -> Sequence[CheckpointCommit]:
        copies: list[CheckpointCommit] = []
        for layer in chain:
            files = self._volume._of(source).checkpoints[layer.id][1]
            copy = adopted(layer, copies[-1] if copies else None, source.name).sealed()
            with self._volume._write(f"adopt {layer.attempt} {layer.step}"):
                self._volume._of(key).checkpoints[copy.id] = (copy, files)
                copies.append(copy)
        return copies

    async def discard(self, key: TrialKey, id: tuple[int, int]) -> None:
        with self._volume._write(f"discard {id}"):
            found = self._volume._of(key).checkpoints
            if id in found and not found[id][0].complete:
                del found[id]

    async def retain(self, key: TrialKey) -> None:
        self._volume._of(key).retained = True

    async def remove(self, key: TrialKey, *, unless_kept: bool = False) -> None:
        with self._volume._write("remove checkpoints"):
            if not (unless_kept and self._volume._of(key).retained):
                self._volume._of(key).checkpoints.clear()


class FakeEvidence:
    """The evidence of the results on a FakeVolume."""

    def __init__(self, volume: FakeVolume) -> None:
        self._volume = volume

    async def list_files(self, key: TrialKey) -> ListDigests:
        with self._volume._write("list_files"):
            return ListDigests(sha256="of the list", files=len(self._volume._of(key).files), result="of result.json")

    async def write(self, key: TrialKey, statement: bytes, envelope: bytes | None) -> None:
        with self._volume._write("evidence"):
            self._volume._of(key).evidence = json.loads(statement)


class FakeResultsStore:
    """The part of a volume that reads the results of other trials."""

    faults: Faults
    results: dict[str, Results]

    async def trials(self, namespace: str = "*", name: str = "*") -> dict[TrialKey, float | None]:
        self.faults.point("volume trials")
        return {each: None for found in self.results.values() if (each := found.key) is not None and name in ("*", each.name)}

    async def part(self, key: TrialKey, path: str, *, offset: int, limit: int) -> bytes | None:
        self.faults.point(f"volume part {path}")
        assert (path, offset) == ("evidence.json", 0)
        found = self.results.get(key.uid)
        return json.dumps(found.evidence).encode()[:limit] if found and found.evidence else None


class FakeBucket(FakeResultsStore):
    """The part of an object store that reads results."""

    def __init__(self, volume: FakeVolume) -> None:
        self.faults = volume.faults
        self._volume = volume

    @property
    def results(self) -> dict[str, Results]:  # type: ignore[override]
        """Return the uploaded results by trial uid."""
        shipped = "shipped "
        return {uid.removeprefix(shipped): found for uid, found in self._volume.results.items() if uid.startswith(shipped)}


class FakeShipping:
    """The object store as the operator uses it (store.bucket.upload_results)."""

    def __init__(self, volume: FakeVolume) -> None:
        self.results = FakeBucket(volume)
        self.uploads = volume
        self.ship = volume.ship


class FakeHistory:
    """The history of the volume's trials. lines: by trial uid, the trial's line with its place."""

    def __init__(self, volume: FakeVolume) -> None:
        self._volume = volume
        self.lines: dict[str, tuple[Place, bytes]] = {}

    async def add(self, place: Place, line: bytes) -> None:
        with self._volume._write("history"):
            self.lines[place.key.uid] = place, line


class FakeRoom:
    """The limits of results. room_bytes: bytes that a collection may store; room_alone_bytes: the same without other trials."""

    faults: Faults
    room_bytes = room_alone_bytes = 1 << 30

    async def headroom(self, key: TrialKey, collection: Collection, **_: Any) -> Headroom:
        self.faults.point("volume room")
        return Headroom(self.room_bytes, 1000)

    async def most(self, key: TrialKey, collection: Collection, **_: Any) -> Headroom:
        self.faults.point("volume room alone")
        return Headroom(self.room_alone_bytes, 1000)


class FakeVolume(FakeRoom, FakeResultsStore):
    """A volume and an object store. results: the volume's results by trial uid, and the object store's by "shipped UID"."""

    def __init__(self, faults: Faults | None = None) -> None:
        self.faults = faults or Faults()
        self.results: dict[str, Results] = {}
        self.checkpoint_bytes = self.most_bytes = 1 << 30
        self.broken = False  # whether all writes of checkpoints fail
        self.checkpoints = FakeCheckpoints(self)
        self.evidence = FakeEvidence(self)
        self.history = FakeHistory(self)
        self.build_logs = FakeBuildLogs()
        self.collections = self.access = self.uploads = self  # one object plays all parts of Volume

    @asynccontextmanager
    async def spool(
        self, key: TrialKey, max_bytes: int | None = None, headroom: Headroom | None = None
    ) -> AsyncIterator[FakeSpool]:
        self.faults.point("volume spool")
        yield FakeSpool()

    async def store_step(
        self,
        key: TrialKey,
        spool: FakeSpool,
        *,
        attempt: int,
        step: CollectedStep,
        types: Sequence[str],
        part: Part = "all",
        sent: Mapping[str, UploadedObject] | None = None,
        received: DownloadFacts | None = None,
        tokens: FakeSpool | None = None,
    ) -> Collected:
        place = step.name if part == "all" else f"{step.name}/{part}"
        with self._write(f"store_step {place}"):
            found = self._of(key)
            found.start_attempt(attempt)
            found.indexes[step.name] = step.index
            found.steps[place] = hashlib.sha256(bytes(spool.data)).hexdigest()
            found.pointers[place] = dict(sent or {})
            if tokens is not None:
                found.tokens[place] = bytes(tokens.data)
        lost = (
            (received.changed, received.unreadable, tuple(received.left_out), (received.cut,) * bool(received.cut))
            if received
            else ()
        )
        incomplete = tuple(str(name) for names in lost for name in names)
        return Collected(tuple(types[len(LOGS[part]) :]), len(types), len(spool.data), incomplete)

    async def collected(self, key: TrialKey, *, attempt: int, step: CollectedStep, entry: int) -> AsyncGenerator[bytes, None]:
        self.faults.point(f"volume collected {step.name} {entry}")
        if f"{step.name}/agent" not in self._of(key).steps:
            raise StoreError(f"the files collected in step {step.name!r} no longer exist")
        yield f"entry {entry} of {step.name}".encode()

    async def store_records(self, key: TrialKey, *, attempt: int, step: CollectedStep, records: Sequence[Any]) -> None:
        with self._write(f"store_records {step.name}"):
            self._of(key).indexes[step.name] = step.index
            self._of(key).records[attempt, step.name] = json.loads(json.dumps(records))

    async def stored(self, key: TrialKey, attempt: int) -> StoredSteps:
        self.faults.point("volume records")
        found = self._of(key)
        records = {found.indexes[name]: kept for (number, name), kept in found.records.items() if number == attempt}
        its = found.steps if found.attempt == attempt else {}
        return StoredSteps(records, frozenset(found.indexes[name] for name, _, part in map(_parts, its) if part == "agent"))

    async def start_attempt(self, key: TrialKey, attempt: int, kept: Sequence[str] = ()) -> None:
        with self._write(f"start_attempt {attempt}"):
            self._of(key).start_attempt(attempt, kept)

    async def finish(self, key: TrialKey, files: Mapping[str, bytes], directories: Iterable[str] = ()) -> None:
        with self._write("finish"):
            self._of(key).files = dict(files)
            self._of(key).directories = list(directories)

    async def redact(self, key: TrialKey, secrets: Iterable[str]) -> None:
        with self._write("redact"):
            self._of(key).redacted |= set(secrets)

    async def exists(self, key: TrialKey) -> bool:
        self.faults.point("volume exists")
        found = self.results.get(key.uid)
        return found is not None and bool(found.attempt or found.files)

    async def remove(self, key: TrialKey, *, but_checkpoints: bool = False) -> None:
        with self._write("remove"):
            found = self.results.pop(key.uid, None)
            if found is not None and found.checkpoints and but_checkpoints:
                self.results[key.uid] = Results(checkpoints=found.checkpoints, retained=found.retained, key=key)

    def uri(self, base: str, key: TrialKey) -> str:
        return f"{base}/results/{key}"

    async def pointers(self, key: TrialKey) -> dict[str, UploadedObject]:
        found = self.results.get(key.uid)
        return {f"{place}/{name}": each for place, made in (found.pointers if found else {}).items() for name, each in made.items()}

    async def append_log(self, key: TrialKey, line: str) -> None:
        with self._write("append_log"):
            self._of(key).log.add(line)

    supported = True

    async def invite(self, key: TrialKey, attempt: int, step: int, number: int) -> PresignedUpload:
        self.faults.point(f"store invite {number}")
        return PresignedUpload(f"memory://{key}/{attempt}/{step}/{number}", {}, "")

    async def sent(self, key: TrialKey, attempt: int, step: int, sent: SentFile) -> UploadedObject | None:
        self.faults.point(f"store sent {sent.number}")
        return UploadedObject(f"sent/{attempt}/{step}/{sent.number}", sent.file.size, sent.sha256, sent.version)

    async def ship(self, key: TrialKey) -> str:
        """Upload the results as upload_results does. Raise StoreError if the store has results that this volume did not
        upload."""
        with self._write("ship"):
            former = self.results.get(f"shipped {key.uid}")
            if former is not None and self.results[key.uid].shipped == 0:
                raise StoreError("the store has other results of this trial")
            self.results[key.uid].shipped += 1
            self.results[f"shipped {key.uid}"] = replace(self.results[key.uid])
        return f"memory://{key}"

    def _of(self, key: TrialKey) -> Results:
        found = self.results.setdefault(key.uid, Results())
        found.key = key
        return found

    @contextmanager
    def _write(self, what: str) -> Iterator[None]:
        self.faults.point(f"volume {what} before")
        yield
        self.faults.point(f"volume {what} after")


def _parts(place: str) -> tuple[str, str, str]:
    return place.partition("/")
