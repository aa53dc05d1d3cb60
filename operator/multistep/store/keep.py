"""One step's download, unpacked (docs/runner-protocol.md): members ``0`` and ``1`` are the logs, the others artifact entries."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..api.task import ArtifactConfig
from ..engine.artifacts import Placement, manifest, place
from ..engine.journal import Collected
from ..engine.operations import LOGS_AGENT, LOGS_ARTIFACTS, LOGS_VERIFIER
from ..errors import StoreError
from .tar import Member, members
from .tree import Skipped, TreeWriter, walk

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
    placements = _placements(fd, artifacts, types)
    places = [*_LOG_PLACES, *(f"artifacts/{each.destination}" for each in placements)]
    sources = [*LOGS, *(each.source for each in artifacts)]
    notes = _Notes()
    with TreeWriter(target) as tree:
        _unpack(fd, tree, _Sources(sources, types, places), notes)
    count, size = _measure(target / "artifacts")
    shown = types[len(LOGS) :]
    (target / "artifacts" / _MANIFEST).write_text(json.dumps(manifest(placements, shown), indent=2) + "\n")
    return Kept(Collected(tuple(shown), count, size), notes.all())


@dataclass(frozen=True)
class _Sources:
    """What was asked for, by index: the path in the container, what the runner found there, and its place here."""

    paths: Sequence[str]
    types: Sequence[str]
    places: Sequence[str]


def _unpack(fd: int, tree: TreeWriter, sources: _Sources, notes: _Notes) -> None:
    for number, member in enumerate(members(fd)):
        index, path = _located(member.name, sources.types)
        source = sources.paths[index] if index is not None else "?"
        try:
            if number >= MAX_MEMBERS:
                raise Skipped(f"there are more than {MAX_MEMBERS} files")
            if index is None:
                raise Skipped("nobody asked for it")
            _check_type(sources.types[index], path, member)
            path = _inside(sources.paths[index], sources.types[index], path)
            tree.add(f"{sources.places[index]}/{path}" if path else sources.places[index], member, fd)
        except Skipped as why:
            notes.add(source, member.name, str(why))


def _placements(fd: int, artifacts: Sequence[ArtifactConfig], types: Sequence[str]) -> list[Placement]:
    found: list[list[str]] = [[] if kind not in ("file", "directory") else [""] for kind in types]
    for _, (index, path) in zip(range(MAX_MEMBERS), _names(fd, types), strict=False):
        if index is not None and index >= len(LOGS) and found[index]:
            found[index].append(_inside(artifacts[index - len(LOGS)].source, types[index], path))
    return place([_RESERVED, *artifacts], [[""], *found[len(LOGS) :]])[1:]


def _names(fd: int, types: Sequence[str]) -> Iterator[tuple[int | None, str]]:
    return (_located(member.name, types) for member in members(fd))


def _located(name: str, types: Sequence[str]) -> tuple[int | None, str]:
    """Which source a member is of, and its path there ("" for the source itself)."""
    index, _, path = name.partition("/")
    known = index.isascii() and index.isdigit() and len(index) < 9 and int(index) < len(types)
    return (int(index) if known else None), path.rstrip("/")


def _inside(source: str, kind: str, path: str) -> str:
    """/logs/artifacts has the top as its place, which only a directory can be; a file there gets its name."""
    is_top = source.rstrip("/") == LOGS_ARTIFACTS
    return "artifacts" if kind == "file" and is_top and not path else path


def _check_type(kind: str, path: str, member: Member) -> None:
    if kind == "file" and (path or member.kind != "file"):
        raise Skipped("the runner said that the source is a file")
    if kind == "directory" and not path and member.kind != "directory":
        raise Skipped("the runner said that the source is a directory")
    if kind not in ("file", "directory"):
        raise Skipped(f"the runner said that the source is {kind[:40]!r}")


def _measure(directory: Path) -> tuple[int, int]:
    """Number of regular files, and their bytes."""
    sizes = [entry.info.st_size for entry in walk(directory) if stat.S_ISREG(entry.info.st_mode)]
    return len(sizes), sum(sizes)
