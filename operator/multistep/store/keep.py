"""One step's download, unpacked (docs/runner-protocol.md): the first members are the logs, the others artifact entries."""

from __future__ import annotations

import json
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path, PurePosixPath
from types import MappingProxyType

from ..api.task import ArtifactConfig
from ..engine.artifacts import Placement, manifest, place
from ..engine.journal import Collected
from ..engine.operations import LOGS, LOGS_AGENT, LOGS_ARTIFACTS, LOGS_VERIFIER, Part
from ..errors import StoreError
from .tar import Kind, Member, members
from .tree import Skipped, TreeWriter, safe_parts, walk

MAX_MEMBERS = 200_000  # of one collection; their names are held in memory to find the artifacts' places
MAX_NOTES = 100
_LOG_PLACES = {LOGS_AGENT: "agent", LOGS_VERIFIER: "verifier"}
_MANIFEST = "manifest.json"
_NONE_SENT: Mapping[str, Pointer] = MappingProxyType({})
# Claims artifacts/manifest.json before any entry can; the models refuse this destination, so it is nobody else's.
_RESERVED = ArtifactConfig.model_construct(source="", destination=_MANIFEST, exclude=[], service=None)


@dataclass(frozen=True)
class Pointer:
    """Where the contents of a file are that went straight to the object store: its name there, relative to the trial's, and
    what the store had under it when the file was collected. sha256: as the pod told it."""

    object: str
    size: int
    sha256: str
    version: str


@dataclass(frozen=True)
class Kept:
    """What was unpacked. notes: a line for each thing that was left out; members: where each entry's files are;
    pointers: by path, for those that are empty here."""

    collected: Collected
    notes: Sequence[str] = ()
    members: Sequence[Members] = ()
    pointers: Mapping[str, Pointer] = field(default_factory=dict)


@dataclass(frozen=True)
class Members:
    """What is kept of one artifact entry: its place in artifacts/, and the paths below it ("" for the place itself).

    file: the name of an entry that is a single file, "" for a directory.
    """

    place: str
    paths: Sequence[str]
    file: str = ""

    def names(self) -> dict[str, str]:
        """Paths below artifacts/ to the names that they have in the entry itself."""
        return {"/".join(part for part in (self.place, path) if part): self.file or path for path in self.paths}


@dataclass
class _Notes:
    """The first few lines, and how many more there would be."""

    lines: list[str] = field(default_factory=list)
    more: int = 0

    def add(self, source: str, name: str, why: str) -> None:
        if len(self.lines) < MAX_NOTES:
            self.lines.append(f"{source}: left out {name[:300]!a}: {why}")
        else:
            self.more += 1

    def all(self) -> list[str]:
        return [*self.lines, f"left out {self.more} more files"] if self.more else self.lines


def keep(
    fd: int,
    target: Path,
    artifacts: Sequence[ArtifactConfig],
    types: Sequence[str],
    part: Part = "all",
    sent: Mapping[str, Pointer] = _NONE_SENT,
) -> Kept:
    """Unpack into directories of target, which is new: agent and verifier as part says, and artifacts, unless it is "verifier".

    types: of all sources, logs first; sent: by name in the stream, where they are empty. Raises StoreError.
    """
    logs = LOGS[part]
    if len(types) != len(logs) + len(artifacts):
        raise StoreError(f"the runner told the types of {len(types)} sources, not of {len(logs) + len(artifacts)}")
    places = [_LOG_PLACES[each] for each in logs]
    for name in (*places, *([] if part == "verifier" else ["artifacts"])):
        (target / name).mkdir()
    sources = _Sources([*logs, *(each.source for each in artifacts)], types, len(logs))
    found = _found(fd, sources)
    placements = place([_RESERVED, *artifacts], [[""], *found])[1:]
    places += [f"artifacts/{each.destination}" for each in placements]
    notes, pointers = _unpack(fd, target, sources, places, sent)
    if part == "verifier":
        return Kept(Collected(), notes.all())
    count, size = _measure(target / "artifacts")
    size += sum(each.size for path, each in pointers.items() if path.startswith("artifacts/"))
    shown = tuple(types[len(logs) :])
    (target / "artifacts" / _MANIFEST).write_text(json.dumps(manifest(placements, shown), indent=2) + "\n")
    return Kept(Collected(shown, count, size), notes.all(), _members(placements, found, shown), pointers)


def _members(placements: Sequence[Placement], found: Sequence[Sequence[str]], types: Sequence[str]) -> list[Members]:
    return [
        Members(each.destination, paths, PurePosixPath(each.entry.source).name if kind == "file" else "")
        for each, paths, kind in zip(placements, found, types, strict=True)
    ]


@dataclass(frozen=True)
class _Sources:
    """What was asked for, by index: the path in the container, and what the runner found there. logs: how many are logs."""

    paths: Sequence[str]
    types: Sequence[str]
    logs: int

    def index(self, name: str) -> int:
        """Which source a member is of. Skipped if nobody asked for it."""
        index = name.partition("/")[0]
        if not (index.isascii() and index.isdigit() and len(index) < 9 and int(index) < len(self.types)):
            raise Skipped("nobody asked for it")
        return int(index)

    def check(self, index: int, path: str, kind: Kind) -> None:
        """Skipped for a member that is not what the runner said of its source."""
        told = self.types[index]
        if told not in ("file", "directory"):
            raise Skipped(f"the runner said that the source is {told[:40]!r}")
        if (told == "file" and (path or kind != "file")) or (told == "directory" and not path and kind != "directory"):
            raise Skipped(f"the runner said that the source is a {told}")

    def name_of(self, member: Member) -> str:
        """The source of a member, for people."""
        with suppress(Skipped):
            return self.paths[self.index(member.name)]
        return "?"

    def wanted(self, member: Member) -> tuple[int, str]:
        """Source of a member that is to be unpacked, and its path there ("" for the source itself). Raises Skipped."""
        index = self.index(member.name)
        # Made plain here: engine.artifacts.place would never find a place for an entry with the path ".".
        path = "/".join(safe_parts(member.name.partition("/")[2].lstrip("/")))
        self.check(index, path, member.kind)
        is_top = self.paths[index].rstrip("/") == LOGS_ARTIFACTS  # its place is the top, which only a directory can be
        return index, "artifacts" if is_top and self.types[index] == "file" else path


def _found(fd: int, sources: _Sources) -> list[list[str]]:
    """The paths of each artifact entry; logs have places of their own."""
    found = [[""] if kind in ("file", "directory") else [] for kind in sources.types]
    for member in islice(members(fd), MAX_MEMBERS):
        with suppress(Skipped):
            index, path = sources.wanted(member)
            if index >= sources.logs:
                found[index].append(path)
    return found[sources.logs :]


def _unpack(
    fd: int, target: Path, sources: _Sources, places: Sequence[str], sent: Mapping[str, Pointer]
) -> tuple[_Notes, dict[str, Pointer]]:
    notes, pointers = _Notes(), dict[str, Pointer]()
    with TreeWriter(target) as tree:
        for number, member in enumerate(members(fd)):
            try:
                if number >= MAX_MEMBERS:
                    raise Skipped(f"there are more than {MAX_MEMBERS} files")
                index, path = sources.wanted(member)
                place = "/".join(safe_parts(f"{places[index]}/{path}"))
                tree.add(place, member, fd)
                if member.name in sent and member.kind == "file" and not member.size:
                    pointers[place] = sent[member.name]
            except Skipped as why:
                notes.add(sources.name_of(member), member.name, str(why))
    return notes, pointers


def _measure(directory: Path) -> tuple[int, int]:
    """Number of regular files, and their bytes."""
    sizes = [entry.info.st_size for entry in walk(directory) if stat.S_ISREG(entry.info.st_mode)]
    return len(sizes), sum(sizes)
