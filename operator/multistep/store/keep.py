"""One step's download, unpacked (docs/runner-protocol.md): members ``0`` and ``1`` are the logs, the others artifact entries."""

from __future__ import annotations

import json
import stat
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from ..api.task import ArtifactConfig
from ..engine.artifacts import Placement, manifest, place
from ..engine.journal import Collected
from ..engine.operations import LOGS_AGENT, LOGS_ARTIFACTS, LOGS_VERIFIER
from ..errors import StoreError
from .tar import Kind, Member, members
from .tree import Skipped, TreeWriter, safe_parts, walk

MAX_MEMBERS = 200_000  # of one collection; their names are held in memory to find the artifacts' places
MAX_NOTES = 100
LOGS = (LOGS_AGENT, LOGS_VERIFIER)
_LOG_PLACES = ("agent", "verifier")
_MANIFEST = "manifest.json"
# Claims artifacts/manifest.json before any entry can; the models refuse this destination, so it is nobody else's.
_RESERVED = ArtifactConfig.model_construct(source="", destination=_MANIFEST, exclude=[], service=None)


@dataclass(frozen=True)
class Kept:
    """What was unpacked. notes: a line for each thing that was left out."""

    collected: Collected
    notes: Sequence[str] = ()


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


def keep(fd: int, target: Path, artifacts: Sequence[ArtifactConfig], types: Sequence[str]) -> Kept:
    """Unpack into ``target/{agent,verifier,artifacts}``, which is new. types: of all sources, logs first. Raises StoreError."""
    if len(types) != len(LOGS) + len(artifacts):
        raise StoreError(f"the runner told the types of {len(types)} sources, not of {len(LOGS) + len(artifacts)}")
    for name in (*_LOG_PLACES, "artifacts"):
        (target / name).mkdir()
    sources = _Sources([*LOGS, *(each.source for each in artifacts)], types)
    placements = _placements(fd, artifacts, sources)
    notes = _unpack(fd, target, sources, [*_LOG_PLACES, *(f"artifacts/{each.destination}" for each in placements)])
    count, size = _measure(target / "artifacts")
    shown = tuple(types[len(LOGS) :])
    (target / "artifacts" / _MANIFEST).write_text(json.dumps(manifest(placements, shown), indent=2) + "\n")
    return Kept(Collected(shown, count, size), notes.all())


@dataclass(frozen=True)
class _Sources:
    """What was asked for, by index: the path in the container, and what the runner found there."""

    paths: Sequence[str]
    types: Sequence[str]

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


def _placements(fd: int, artifacts: Sequence[ArtifactConfig], sources: _Sources) -> list[Placement]:
    found = [[""] if kind in ("file", "directory") else [] for kind in sources.types]
    for member in islice(members(fd), MAX_MEMBERS):
        with suppress(Skipped):
            index, path = sources.wanted(member)
            if index >= len(LOGS):  # logs have places of their own
                found[index].append(path)
    return place([_RESERVED, *artifacts], [[""], *found[len(LOGS) :]])[1:]


def _unpack(fd: int, target: Path, sources: _Sources, places: Sequence[str]) -> _Notes:
    notes = _Notes()
    with TreeWriter(target) as tree:
        for number, member in enumerate(members(fd)):
            try:
                if number >= MAX_MEMBERS:
                    raise Skipped(f"there are more than {MAX_MEMBERS} files")
                index, path = sources.wanted(member)
                tree.add(f"{places[index]}/{path}", member, fd)
            except Skipped as why:
                notes.add(sources.name_of(member), member.name, str(why))
    return notes


def _measure(directory: Path) -> tuple[int, int]:
    """Number of regular files, and their bytes."""
    sizes = [entry.info.st_size for entry in walk(directory) if stat.S_ISREG(entry.info.st_mode)]
    return len(sizes), sum(sizes)
