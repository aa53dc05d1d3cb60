"""Finds a version of a dataset in a registry.json, Harbor's list of datasets, and selects tasks of the dataset.

Versions, names and patterns mean the same as in Harbor 0.26. This module does no IO.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Any, Final, TypeVar

from packaging.version import InvalidVersion, Version

from multistep.api.trial.values import NOT_FOUND
from multistep.errors import SourceError

_T = TypeVar("_T")
REGISTRY_BYTES: Final = 16 << 20
HUB: Final = (
    "is in Harbor's hosted hub, from which Multistep does not read: run `harbor download {name}`, "
    "then `multistep sweep run` with the downloaded directory"
)
_COMMIT = re.compile(r"[0-9a-fA-F]{40}")
_HEAD: Final = "head"
_SHOWN: Final = 5
_STEM_CHARACTERS: Final = 100


@dataclass(frozen=True)
class Selection:
    """A selection of a dataset's tasks."""

    name: str
    version: str = ""
    """The version, or "" for the newest."""
    include: Sequence[str] = ()
    """Patterns of the names of tasks to include. Without patterns, all tasks are included."""
    exclude: Sequence[str] = ()
    """Patterns of the names of tasks to exclude."""
    limit: int | None = None
    """Maximum number of tasks."""


@dataclass(frozen=True)
class DatasetTask:
    """A task of a dataset."""

    name: str
    """Name of the task's directory, which patterns match."""
    path: str
    """Directory in the repository, or local path."""
    url: str | None = None
    """The task's git repository, or None for a local path."""
    ref: str = ""
    """Commit, branch or tag, or "" for the repository's default branch."""


@dataclass(frozen=True)
class Dataset:
    """A version of a dataset."""

    name: str
    version: str
    description: str
    tasks: Sequence[Mapping[str, Any]]
    """The tasks' entries in registry.json, which ``select_tasks`` checks."""


def parse_registry(data: bytes, what: str) -> list[Dataset]:
    """Return the datasets of a registry.json. Raises SourceError, which names the registry ``what``."""
    try:
        rows = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{what} is not a registry.json: it is not JSON") from error
    if not isinstance(rows, list):
        raise SourceError(f"{what} is not a registry.json: it must be a list of datasets")
    return [_dataset(row, f"{what}: [{number}]") for number, row in enumerate(rows)]


def find_dataset(datasets: Sequence[Dataset], selection: Selection, what: str) -> Dataset:
    """Return the selected version of the dataset, or the newest if no version is selected. Raises SourceError."""
    name = selection.name
    if "/" in name:
        raise SourceError(f"dataset {name!r} {HUB.format(name=name)}", reason=NOT_FOUND)
    versions = {
        dataset.version: dataset for dataset in datasets if dataset.name == name
    }  # as in Harbor, the last one of equal versions counts
    if not versions:
        raise SourceError(f"{what} has no dataset {name!r}; it has {_some(dataset.name for dataset in datasets)}", reason=NOT_FOUND)
    wanted = selection.version or newest_version(list(versions))
    if wanted not in versions:
        text = f"{what} has no version {wanted!r} of dataset {name!r}; it has {_some(versions)}"
        raise SourceError(text, reason=NOT_FOUND)
    return versions[wanted]


def newest_version(versions: Sequence[str]) -> str:
    """Return ``head`` if it is a version, otherwise the highest version by PEP 440, otherwise the last in alphabetical order."""
    if _HEAD in versions:
        return _HEAD
    numbered = [(number, version) for version in versions if (number := _number(version)) is not None]
    return max(numbered, key=lambda pair: pair[0])[1] if numbered else max(versions)


def select_tasks(
    dataset: Dataset, selection: Selection, what: str, local_name: Callable[[str], str] | None = None
) -> list[DatasetTask]:
    """Return the selected tasks in the dataset's order. Raises SourceError.

    ``local_name`` maps a local path to the name of the directory there. Without it, the last part of the path is the name.
    """
    where = f"{what}: dataset {dataset.name}@{dataset.version}"
    tasks = [_task(row, f"{where}: tasks[{number}]", local_name) for number, row in enumerate(dataset.tasks)]
    if not tasks:
        raise SourceError(f"{where} has no tasks", reason=NOT_FOUND)
    return choose(tasks, selection, where, lambda task: task.name)


def choose(tasks: Sequence[_T], selection: Selection, where: str, name: Callable[[_T], str]) -> list[_T]:
    """Return the tasks that the selection's patterns and limit choose. Raises SourceError, with ``where`` as the tasks' origin, if
    there is none. Patterns match the result of ``name``."""
    selected = [task for task in tasks if not selection.include or _matches(name(task), selection.include)]
    if not selected:
        names = _some(map(name, tasks))
        raise SourceError(f"{where}: no task matches {_some(selection.include)}; it has {names}", reason=NOT_FOUND)
    selected = [task for task in selected if not _matches(name(task), selection.exclude)][: selection.limit]
    if not selected:
        raise SourceError(f"{where}: all tasks are excluded", reason=NOT_FOUND)
    return selected


def distinct_names(tasks: Iterable[DatasetTask]) -> list[str]:
    """Return a distinct name for each task. If tasks have the same name, the second one is called NAME-2, and so on.

    A task at the root of a repository gets the name of the repository.
    """
    wanted = [task.name or PurePosixPath(task.url or task.path).stem[:_STEM_CHARACTERS] for task in tasks]
    taken, counts, names = set(wanted), Counter[str](), list[str]()
    for name in wanted:
        counts[name] += 1
        if counts[name] > 1:
            while (other := f"{name}-{counts[name]}") in taken:
                counts[name] += 1
            taken.add(name := other)
        names.append(name)
    return names


def _dataset(row: Any, where: str) -> Dataset:
    if not isinstance(row, dict):
        raise SourceError(f"{where} must be an object")
    for key in ("name", "version", "description"):
        if not isinstance(row.get(key), str):
            raise SourceError(f"{where}.{key} must be a string")
    tasks = row.get("tasks")
    if not isinstance(tasks, list) or not all(isinstance(task, dict) for task in tasks):
        raise SourceError(f"{where}.tasks must be a list of objects")
    return Dataset(row["name"], row["version"], row["description"], tasks)


def _task(row: Mapping[str, Any], where: str, local_name: Callable[[str], str] | None) -> DatasetTask:
    path, url, ref = row.get("path"), row.get("git_url"), row.get("git_commit_id")
    if not isinstance(path, str) or not isinstance(row.get("name"), str):
        raise SourceError(f"{where}: name and path must be strings")
    if not all(value is None or isinstance(value, str) for value in (url, ref)):
        raise SourceError(f"{where}: git_url and git_commit_id must be strings")
    if url is None:
        return DatasetTask((local_name or _last_part)(path), path)
    path = _normal(path, where)
    ref = "" if ref in (None, "HEAD") else ref.lower() if _COMMIT.fullmatch(ref) else ref
    return DatasetTask(_last_part(path), path, url, ref)


def _normal(path: str, where: str) -> str:
    """Return a path in a repository without '.' and '..'. The root is "". Raises SourceError if the path leads out of the
    repository."""
    parts: list[str] = []
    for part in PurePosixPath(path).parts:
        if part.startswith("/") or (part == ".." and not parts):
            raise SourceError(f"{where}: path {path!r} must be relative, and stay in the repository")
        parts = parts[:-1] if part == ".." else [*parts, part]
    return "/".join(parts)


def _last_part(path: str) -> str:
    return PurePosixPath(path).name


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _number(version: str) -> Version | None:
    try:
        return Version(version)
    except InvalidVersion:
        return None


def _some(names: Iterable[str]) -> str:
    distinct = sorted(set(names))
    return f"{', '.join(map(repr, distinct[:_SHOWN]))}{' ...' if len(distinct) > _SHOWN else ''}" if distinct else "none"
