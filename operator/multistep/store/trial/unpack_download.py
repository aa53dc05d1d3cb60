"""Unpacks a step's download (docs/internals/runner-protocol.md). A source is a path in the container that was collected. The first
sources are logs, the others are artifact entries."""

from __future__ import annotations

import json
import stat
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path, PurePosixPath
from types import MappingProxyType

from multistep.api.common.plural import plural
from multistep.api.task.task_toml import ArtifactConfig
from multistep.engine.journal.journal import Collected
from multistep.engine.journal.operations import LOGS, LOGS_AGENT, LOGS_VERIFIER, Part
from multistep.engine.journal.results_limits import NO_LIMIT, Amount, Filling, Headroom
from multistep.engine.plan.select_artifacts import LOGS_ARTIFACTS, Placement, artifacts_manifest, place_artifacts
from multistep.errors import StoreError
from multistep.store.files.file_trees import SkippedMember, TreeWriter, safe_parts, walk
from multistep.store.files.read_tar import MAX_MEMBERS, Kind, TarMember, tar_members

MAX_NAMED = 100  # maximum number of files of a source that are listed by name
CHANGED = "changed while it was read"
UNREADABLE = "could not be read"


@dataclass
class IncompleteSource:
    """The files of one source that are missing or were changed."""

    files: list[tuple[str, str]] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)
    whole_reason: str = ""
    """Why the copy of the whole source ended early, or ""."""

    def add(self, path: str, reason: str, kind: str = "") -> None:
        """Add a file. The summary shows the number of files by ``kind``, a shorter form of the reason, or by the reason if ``kind``
        is empty."""
        self.reasons[kind or reason] += 1
        if len(self.files) < MAX_NAMED:
            self.files.append((path, reason))

    def __bool__(self) -> bool:
        return bool(self.reasons or self.whole_reason)

    def entries(self) -> list[dict[str, str]]:
        """Return an entry for manifest.json for each listed file, and one with the path "" if the copy of the source ended
        early."""
        cut = [("", self.whole_reason)] if self.whole_reason else []
        return [{"path": path, "reason": reason} for path, reason in [*cut, *self.files]]

    def summary(self, source: str) -> str:
        """Return one line for the status. It has no file names, because an agent chooses them."""
        counts = [f"{count} {'file' if count == 1 else 'files'}: {reason}" for reason, count in self.reasons.items()]
        return f"{source}: {'; '.join([*([self.whole_reason] if self.whole_reason else []), *counts])}"


def incomplete_lines(sources: Sequence[str], incompletes: Sequence[IncompleteSource]) -> tuple[str, ...]:
    """Return a line for each incomplete source."""
    return tuple(incomplete.summary(source) for source, incomplete in zip(sources, incompletes, strict=True) if incomplete)


MAX_NOTES = 100
CROWDED = "the results of other trials leave no room within the namespace's results limit for artifacts that the verifier needs"
_NO_ROOM = "left out: no room within the results limits"
_NOT_STORABLE = "left out: cannot be stored"
_LOG_PLACES = {LOGS_AGENT: "agent", LOGS_VERIFIER: "verifier"}
_MANIFEST = "manifest.json"
_NONE_SENT: Mapping[str, UploadedObject] = MappingProxyType({})
# This entry comes before all artifact entries, and reserves artifacts/manifest.json, so that no artifact gets this name. It is
# built without validation, which rejects the name.
_RESERVED = ArtifactConfig.model_construct(source="", destination=_MANIFEST, exclude=[], service=None)


@dataclass(frozen=True)
class UploadedObject:
    """An object with the contents of a file that the pod uploaded directly to the object store."""

    object: str
    """The object's name below the trial's prefix."""
    size: int
    sha256: str
    """Digest of the contents, as the pod reported it."""
    version: str
    """The object's version (ETag) when the step was collected, as the store reported it, like ``size``."""


@dataclass(frozen=True)
class DownloadFacts:
    """Metadata of a download. Files are identified by their names in the tar stream."""

    changed: Sequence[str] = ()
    """Files that changed while they were read."""
    unreadable: Sequence[str] = ()
    """Files that could not be read."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Files whose contents the operator did not request, with the reason."""
    cut: str = ""
    """Why the stream ends early, or ""."""
    headroom: Headroom | None = None
    """Bytes and files that the results limits still allow. None means no limit."""
    alone: Headroom | None = None
    """The headroom that there would be if the namespace had no other trial. It is None if no verifier gets the files."""


_WHOLE = DownloadFacts()


@dataclass(frozen=True)
class UnpackedStep:
    """An unpacked download."""

    collected: Collected
    used: Amount
    """Bytes and files that count towards the limits."""
    notes: Sequence[str] = ()
    """One line for each file that was left out."""
    members: Sequence[EntryFiles] = ()
    """The files of each artifact entry."""
    pointers: Mapping[str, UploadedObject] = field(default_factory=dict)
    """Objects of the files that the pod uploaded directly, by path. These files are empty on disk."""
    digests: Sequence[bytes] = ()
    """Digests of large files, as lines for store.files.known_digests."""


@dataclass(frozen=True)
class EntryFiles:
    """The stored files of one artifact entry."""

    place: str
    """The entry's path in artifacts/."""
    paths: Sequence[str]
    """The stored paths below ``place``. "" stands for ``place`` itself."""
    file: str = ""
    """Name of the file in the container if the entry is a single file, otherwise ""."""

    def names(self) -> dict[str, str]:
        """Return each file's path in the entry's source (the name of a single file), by its path below artifacts/."""
        return {"/".join(part for part in (self.place, path) if part): self.file or path for path in self.paths}


@dataclass
class _Notes:
    """The first MAX_NOTES notes about files that were left out, and the number of further ones."""

    lines: list[str] = field(default_factory=list)
    more: int = 0

    def add(self, source: str, name: str, why: str) -> None:
        if len(self.lines) < MAX_NOTES:
            self.lines.append(f"{source}: left out {name[:300]!a}: {why}")
        else:
            self.more += 1

    def all(self) -> list[str]:
        return [*self.lines, f"left out {plural(self.more, 'more file')}"] if self.more else self.lines


def unpack(
    fd: int,
    target: Path,
    artifacts: Sequence[ArtifactConfig],
    types: Sequence[str],
    part: Part = "all",
    sent: Mapping[str, UploadedObject] = _NONE_SENT,
    received: DownloadFacts = _WHOLE,
) -> UnpackedStep:
    """Unpack a step's download into new directories below ``target``. Raises StoreError.

    Args:
        part: The step's outputs in the download. "verifier" has no artifacts.
        types: The type of each source that the runner reported, logs first.
        sent: Objects of the files that the pod uploaded directly, by name in the tar stream, where they are empty.
    """
    logs = LOGS[part]
    if len(types) != len(logs) + len(artifacts):
        raise StoreError(f"the runner reported the types of {len(types)} sources, not of {len(logs) + len(artifacts)}")
    places = [_LOG_PLACES[log] for log in logs]
    for name in (*places, *([] if part == "verifier" else ["artifacts"])):
        (target / name).mkdir()
    sources = _Sources([*logs, *(artifact.source for artifact in artifacts)], types, len(logs))
    filling = Filling(received.headroom or Headroom(NO_LIMIT, MAX_MEMBERS))
    members = _found(fd, sources, cut=bool(received.cut))
    placements = place_artifacts([_RESERVED, *artifacts], [[""], *members])[1:]
    places += [f"artifacts/{placement.destination}" for placement in placements]
    unpacking = _Unpacking(sources, places, sent, received, filling)
    unpacking.run(fd, target)
    notes, pointers, incomplete = unpacking.notes, unpacking.pointers, unpacking.incomplete
    lines = incomplete_lines(sources.paths, incomplete)
    notes.lines = [*lines, *notes.lines]
    if part == "verifier":
        return UnpackedStep(Collected(incomplete=lines), filling.used, notes.all(), digests=unpacking.digests)
    count, size = _measure(target / "artifacts")
    size += sum(uploaded.size for path, uploaded in pointers.items() if path.startswith("artifacts/"))
    shown = tuple(types[len(logs) :])
    (target / "artifacts" / _MANIFEST).write_text(
        json.dumps(artifacts_manifest(placements, shown, [source.entries() for source in incomplete[len(logs) :]]), indent=2) + "\n"
    )
    collected = Collected(shown, count, size, lines)
    return UnpackedStep(collected, filling.used, notes.all(), _members(placements, members, shown), pointers, unpacking.digests)


def _members(placements: Sequence[Placement], members: Sequence[Sequence[str]], types: Sequence[str]) -> list[EntryFiles]:
    return [
        EntryFiles(placement.destination, paths, PurePosixPath(placement.entry.source).name if kind == "file" else "")
        for placement, paths, kind in zip(placements, members, types, strict=True)
    ]


@dataclass(frozen=True)
class _Sources:
    """The sources of a download, with their paths in the container and the types that the runner reported."""

    paths: Sequence[str]
    types: Sequence[str]
    logs: int
    """Number of sources that are logs. The artifacts follow."""

    def index(self, name: str) -> int:
        """Return the index of a tar member's source. Raises SkippedMember if that source was not requested."""
        index = name.partition("/")[0]
        if not (index.isascii() and index.isdigit() and len(index) < 9 and int(index) < len(self.types)):
            raise SkippedMember("it was not requested")
        return int(index)

    def check(self, index: int, path: str, kind: Kind) -> None:
        """Raise SkippedMember if a tar member contradicts the type that the runner reported for the member's source."""
        reported = self.types[index]
        if reported not in ("file", "directory"):
            raise SkippedMember(f"the runner reported that the source is {reported[:40]!r}")
        if (reported == "file" and (path or kind != "file")) or (reported == "directory" and not path and kind != "directory"):
            raise SkippedMember(f"the runner reported that the source is a {reported}")

    def name_of(self, member: TarMember) -> str:
        """Return the path of a tar member's source in the container, for messages."""
        with suppress(SkippedMember):
            return self.paths[self.index(member.name)]
        return "?"

    def wanted(self, member: TarMember) -> tuple[int, str]:
        """Return the index of a tar member's source, and the member's path below the source ("" for the source itself). Raises
        SkippedMember."""
        index = self.index(member.name)
        # normalizes the path, because place_artifacts would never return for a path "."
        path = "/".join(safe_parts(member.name.partition("/")[2].lstrip("/")))
        self.check(index, path, member.kind)
        # A directory becomes artifacts/, and a file becomes artifacts/artifacts.
        is_top = self.paths[index].rstrip("/") == LOGS_ARTIFACTS
        return index, "artifacts" if is_top and self.types[index] == "file" else path


def _found(fd: int, sources: _Sources, *, cut: bool) -> list[list[str]]:
    """Return the paths of the members of each artifact entry. Logs are left out, because their destinations are fixed."""
    members = [[""] if kind in ("file", "directory") else [] for kind in sources.types]
    for index, path in islice(_artifacts(fd, sources, cut=cut), MAX_MEMBERS):
        members[index].append(path)
    return members[sources.logs :]


def _artifacts(fd: int, sources: _Sources, *, cut: bool) -> Iterator[tuple[int, str]]:
    for member in tar_members(fd, cut=cut):
        with suppress(SkippedMember):
            index, path = sources.wanted(member)
            if index >= sources.logs:
                yield index, path


@dataclass
class _Unpacking:
    """Unpacks one download's tar."""

    sources: _Sources
    places: Sequence[str]
    """The target directory of each source."""
    sent: Mapping[str, UploadedObject]
    received: DownloadFacts
    filling: Filling
    notes: _Notes = field(default_factory=_Notes)
    pointers: dict[str, UploadedObject] = field(default_factory=dict)
    incomplete: list[IncompleteSource] = field(default_factory=list)
    """The missing or changed files of each source."""
    digests: Sequence[bytes] = ()
    artifacts: int = 0
    """Number of members that are artifacts."""
    reached: int = 0
    alone: Filling | None = None
    """Counts which files would fit if the namespace had no other trial."""
    crowded: bool = False
    """Whether a verifier would lack a file because other trials use up the limit."""

    def run(self, fd: int, target: Path) -> None:
        """Unpack the tar members that fit in the results limits, and record the others. Raises StoreError if other trials leave no
        room for a file that a verifier gets."""
        self.incomplete = [IncompleteSource() for _ in self.sources.paths]
        self.alone = Filling(self.received.alone) if self.received.alone else None
        for names, reason in ((self.received.changed, CHANGED), (self.received.unreadable, UNREADABLE)):
            for name in names:
                self._report(name, reason)
        with TreeWriter(target) as tree:
            for member in tar_members(fd, cut=bool(self.received.cut)):
                try:
                    self._add(tree, member, fd)
                except SkippedMember as why:
                    self.notes.add(self.sources.name_of(member), member.name, str(why))
                    self._report(member.name, str(why), _NOT_STORABLE)
            self.digests = tree.digests
        if self.received.cut:
            self._cut_off(self.received.cut)
        if self.crowded:
            raise StoreError(CROWDED)

    def _add(self, tree: TreeWriter, member: TarMember, fd: int) -> None:
        index, path = self.sources.wanted(member)
        self.reached = index
        self.artifacts += index >= self.sources.logs
        if self.artifacts > MAX_MEMBERS:
            raise SkippedMember(f"more than {MAX_MEMBERS} files are artifacts")
        place = "/".join(safe_parts(f"{self.places[index]}/{path}"))
        fits_alone = self.alone is not None and not self.alone.refuse(place, member.size)
        if why := self.received.left_out.get(member.name) or self.filling.refuse(place, member.size):
            self.crowded |= fits_alone and index >= self.sources.logs and member.name not in self.received.left_out
            self.incomplete[index].add(path, why, _NO_ROOM)
            return
        tree.add(place, member, fd)
        if member.name in self.sent and member.kind == "file" and not member.size:
            self.pointers[place] = self.sent[member.name]

    def _cut_off(self, why: str) -> None:
        """Mark the source at which the stream ended early, and all later sources, as incomplete."""
        if self.alone is not None and "results limit" in why:  # not if the files are missing for another reason, such as a timeout
            now, alone = self.filling.headroom, self.alone.headroom
            self.crowded |= now.bytes < alone.bytes or ("namespace" in why and alone.bytes_of != "namespace")
        for index in range(self.reached, len(self.incomplete)):
            if self.sources.types[index] in ("file", "directory"):
                self.incomplete[index].whole_reason = f"cut off: {why}"

    def _report(self, name: str, reason: str, kind: str = "") -> None:
        with suppress(SkippedMember):
            self.incomplete[self.sources.index(name)].add(name.partition("/")[2], reason, kind)


def _measure(directory: Path) -> tuple[int, int]:
    """Return the number of regular files and their total size in bytes."""
    sizes = [entry.info.st_size for entry in walk(directory) if stat.S_ISREG(entry.info.st_mode)]
    return len(sizes), sum(sizes)
