"""Selects the artifact entries of a step, assigns their paths below ``steps/NAME/artifacts``, and builds manifest.json.

Two rules differ from Harbor 0.26, because the specification of multi-step tasks requires it. Artifacts are collected after the
verification, and they are stored under the base name of their source.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import PurePosixPath
from typing import Any, TypeAlias

from multistep.api.task.layout import MAIN
from multistep.api.task.task_toml import ArtifactConfig

LOGS_ARTIFACTS = "/logs/artifacts"

_Owner: TypeAlias = tuple[str, str | None, str | None]  # source, destination and service; entries with the same owner share paths


@dataclass(frozen=True)
class Placement:
    """The destination of an artifact entry's files."""

    entry: ArtifactConfig
    destination: str
    """Path relative to the artifacts directory, "" for that directory itself."""


def pass_entries(
    task: Sequence[ArtifactConfig], trial: Sequence[ArtifactConfig], step: Sequence[ArtifactConfig]
) -> tuple[ArtifactConfig, ...]:
    """Return the artifact entries that apply to a step: the task's, the trial's, then the step's own.

    If no entry has the source /logs/artifacts, the first returned entry is one for this source.
    """
    named = [*task, *trial, *step]
    if any(entry.source.rstrip("/") == LOGS_ARTIFACTS and _service(entry) is None for entry in named):
        return tuple(named)
    return (ArtifactConfig(source=LOGS_ARTIFACTS), *named)


def place_artifacts(entries: Sequence[ArtifactConfig], members: Sequence[Iterable[str]]) -> list[Placement]:
    """Return a destination for each entry, so that no two different sources share a path.

    ``members`` has, for each entry, the paths that were found in its source, relative to the source ("" for the source itself). It
    is empty for a source that does not exist.

    The default destination is the base name of the source, or the artifacts directory itself for /logs/artifacts. On a collision
    with another source, the destination is the full path of the source. If this collides too, it is the full path in a numbered
    directory. The results store passes an additional first entry, which reserves the path of manifest.json.
    """
    taken = _Taken()
    placed: dict[_Owner, str] = {}
    result = []
    for entry, paths in zip(entries, members, strict=True):
        owner = (entry.source, entry.destination, _service(entry))
        former = [placed[owner]] if owner in placed else []
        placed[owner] = next(
            destination for destination in chain(former, _candidates(entry)) if taken.claim(destination, paths, owner)
        )
        result.append(Placement(entry, placed[owner]))
    return result


def artifacts_manifest(
    placements: Sequence[Placement], types: Sequence[str], incomplete: Sequence[Sequence[Mapping[str, str]]] = ()
) -> list[dict[str, Any]]:
    """Return the content of manifest.json, as in Harbor 0.26.

    ``types`` has the type of each entry in the container: file, directory, missing or other. ``incomplete`` lists, for each entry,
    the collected files that are missing or differ from the files in the container. An entry with such files has Harbor's status
    "failed".
    """
    missed = incomplete or [()] * len(placements)
    return [_manifest_line(*line) for line in zip(placements, types, missed, strict=True)]


def _manifest_line(placement: Placement, kind: str, incomplete: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    complete = kind in ("file", "directory") and not incomplete
    named = {"incomplete": [dict(file) for file in incomplete]} if incomplete else {}
    return {
        "source": placement.entry.source,
        "destination": str(PurePosixPath("artifacts") / placement.destination),
        "type": "directory" if kind == "directory" else "file",
        "status": "ok" if complete else "failed",
        "service": _service(placement.entry),
        "exclude": list(placement.entry.exclude) if kind == "directory" else [],
        **named,
    }


def _service(entry: ArtifactConfig) -> str | None:
    """Return the service from which an entry is collected, None for the trial's container."""
    return entry.service if entry.service != MAIN else None


def _candidates(entry: ArtifactConfig) -> Iterable[str]:
    full = _relative(entry.source)
    if entry.destination:
        yield entry.destination.rstrip("/")
    elif entry.source.rstrip("/") == LOGS_ARTIFACTS:
        yield ""
    else:
        yield PurePosixPath(full).name or "root"
    yield full or "root"
    number = 2
    while True:
        yield f"{number}/{full or 'root'}"
        number += 1


def _relative(source: str) -> str:
    return "/".join(part for part in source.split("/") if part not in ("", ".", ".."))


class _Taken:
    """The assigned paths, which are those of files and of the directories above them, and the entries that own each path."""

    def __init__(self) -> None:
        self._claims: dict[str, _Owner] = {}  # owner of each assigned path
        self._above: dict[str, set[_Owner]] = {}  # owners of the assigned paths below each directory

    def claim(self, destination: str, paths: Iterable[str], owner: _Owner) -> bool:
        """Assign ``paths`` below ``destination`` to the owner, and return True. On a collision assign no path and return False."""
        taken = self._claims.get(destination, owner) != owner  # stop at the first collision, because an agent can cause very many
        if taken or any(self._meets(_join(destination, path), owner) for path in paths):
            return False
        for path in (_join(destination, path) for path in paths):
            self._claims[path] = owner
            for parent in _parents(path):
                self._above.setdefault(parent, set()).add(owner)
        return True

    def _meets(self, path: str, owner: _Owner) -> bool:
        if not path:
            return False
        return bool(self._above.get(path, set()) - {owner}) or any(
            self._claims.get(above, owner) != owner for above in (path, *_parents(path))
        )


def _parents(path: str) -> list[str]:
    """Return the directories above a path, without the top directory, which all entries share."""
    return [str(parent) for parent in PurePosixPath(path).parents][:-1]


def _join(destination: str, path: str) -> str:
    return "/".join(part for part in (destination, path) if part)
