"""Reads fetched results: a trial's directory, or a trial's objects that were downloaded from an object store.

The results are untrusted. Links are never followed, and memory is bounded.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, Protocol

from multistep.api.common.safe_paths import leads_out
from multistep.errors import MultistepError, StoreError
from multistep.store.evidence import file_list
from multistep.store.evidence.file_list import Kind
from multistep.store.files.file_trees import MAX_DEPTH, open_below, walk
from multistep.store.files.known_digests import read_sha256
from multistep.store.trial import object_manifest
from multistep.store.trial.object_manifest import DIRECT_UPLOADS, ManifestLine

_MAX_LINE_BYTES = 64 * 1024
_KINDS: Final[dict[int, Kind]] = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "link"}


class DamagedResults(MultistepError):
    """A file or directory of fetched results cannot be read."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class MissingResult(DamagedResults):
    """A file of fetched results does not exist."""

    def __init__(self, path: str) -> None:
        super().__init__(path, "is missing")


@dataclass(frozen=True)
class FetchedItem:
    """A file, directory or link of fetched results."""

    path: str
    kind: Kind | None
    """The type, or None for a type that results cannot contain and for an object that the manifest does not name."""
    size: int = 0
    target: str = ""
    content_path: str = ""
    """Path of a file's content."""


class FetchedResults(Protocol):
    """The fetched results of one trial."""

    def content_path(self, name: str) -> str:
        """Return the path of the content of a file at the results' top."""

    def items(self) -> Iterator[FetchedItem]:
        """Yield all files, directories and links, in the order of ``file_trees.walk``. Raises DamagedResults."""

    def open(self, path: str) -> BinaryIO:
        """Open the content of a file. Raises DamagedResults if it is a link, is no regular file, or cannot be read."""


@dataclass(frozen=True)
class ResultsDirectory:
    """A trial's directory that `multistep results` fetched."""

    top: Path

    def content_path(self, name: str) -> str:
        return name

    def items(self) -> Iterator[FetchedItem]:
        try:
            for entry in walk(self.top):
                if entry.path.count("/") > 2 * MAX_DEPTH:
                    raise DamagedResults(entry.path, "is too deep")
                kind = _KINDS.get(stat.S_IFMT(entry.info.st_mode))
                target = entry.link_target() if kind == "link" else ""
                yield FetchedItem(entry.path, kind, entry.info.st_size if kind == "file" else 0, target, entry.path)
        except OSError as error:
            raise DamagedResults(".", f"cannot be read: {error.strerror}") from error

    def open(self, path: str) -> BinaryIO:
        return open_regular(self.top, path)


@dataclass(frozen=True)
class DownloadedObjects:
    """The objects of a trial that another tool downloaded from the object store. They are a manifest and files with portable
    names."""

    top: Path

    def content_path(self, name: str) -> str:
        return object_manifest.object_name(name)

    def items(self) -> Iterator[FetchedItem]:
        named = {object_manifest.NAME}
        with open_regular(self.top, object_manifest.NAME) as lines:
            if not lines.readline(_MAX_LINE_BYTES).endswith(b"\n"):
                raise DamagedResults(object_manifest.NAME, "has no first line")
            while data := lines.readline(_MAX_LINE_BYTES):
                line = _parsed(data)
                named.add(line.object)
                yield FetchedItem(line.path, line.kind, line.size, line.target, line.object)
        for entry in ResultsDirectory(self.top).items():
            if entry.kind != "directory" and entry.path not in named and not entry.path.startswith(f"{DIRECT_UPLOADS}/"):
                yield FetchedItem(entry.path, None)

    def open(self, path: str) -> BinaryIO:
        return open_regular(self.top, path)


def _parsed(data: bytes) -> ManifestLine:
    try:
        line = ManifestLine.decode(data)
        texts = (line.path, line.target, line.object)
        if not all(isinstance(text, str) for text in texts) or not isinstance(line.size, int) or line.kind not in _KINDS.values():
            raise TypeError
        os.fsencode(line.path)
        return line
    except (MultistepError, RecursionError, TypeError, UnicodeError) as error:
        raise DamagedResults(object_manifest.NAME, "has an invalid line") from error


def open_regular(top: Path, path: str) -> BinaryIO:
    """Open a regular file below a directory, without following links. Raises DamagedResults."""
    try:
        if not path or leads_out(path):
            raise DamagedResults(path, "leads out of the results")
        fd = open_below(top, path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise MissingResult(path) from error
    except (OSError, ValueError) as error:
        raise DamagedResults(path, f"is a link, or cannot be read: {error}") from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise DamagedResults(path, "is not a regular file")
    return os.fdopen(fd, "rb")


def read_result(results: FetchedResults, name: str, limit: int) -> bytes:
    """Return a file at the results' top. Raises DamagedResults if it cannot be read or has more than ``limit`` bytes."""
    with results.open(results.content_path(name)) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise DamagedResults(name, f"is larger than {limit} bytes")
    return data


def result_sha256(results: FetchedResults, item: FetchedItem) -> str:
    """Return the SHA-256 of a file. Raises DamagedResults if the file cannot be read or has another size."""
    with results.open(item.content_path) as file:
        if (size := os.fstat(file.fileno()).st_size) != item.size:
            raise DamagedResults(item.path, f"has {size} bytes instead of {item.size}")
        try:
            return read_sha256(file.fileno())[0]
        except OSError as error:
            raise DamagedResults(item.path, f"cannot be read: {error.strerror}") from error


_MARKS: Final = frozenset({*file_list.OWN, object_manifest.NAME, "result.json", "config.json", "lock.json", "trial.log"})
_OF_JOBS: Final = frozenset({"result.json", "config.json", "lock.json"})
_MAX_RESULT_BYTES = 64 << 20
_MAX_DEPTH = 8  # maximum depth at which a trial's directory is found. An object store has PREFIX/NAMESPACE/NAME/UID
_MAX_DIRECTORIES = 100_000


def trial_directories(top: Path) -> list[Path]:
    """Return the directories of all trials at or below a directory, in order, without following links.

    Raises StoreError if there are too many directories.
    """
    trials, ahead, count = list[Path](), [(top, 0)], 0
    while ahead:
        path, depth = ahead.pop()
        if (count := count + 1) > _MAX_DIRECTORIES:
            raise StoreError(f"{top} has more than {_MAX_DIRECTORIES} directories: name one with fewer trials")
        if _is_trial(path):
            trials.append(path)
        elif depth < _MAX_DEPTH:
            ahead += [(directory, depth + 1) for directory in reversed(_directories(path))]
    return trials


def _is_trial(path: Path) -> bool:
    """Return whether a directory is a trial's. The directory of a fetched sweep (a job) has some files of the same names."""
    marks = {name for name in _MARKS if os.path.lexists(path / name)}
    return bool(marks) and not (marks <= _OF_JOBS and _is_job(path))


def _is_job(path: Path) -> bool:
    try:
        document = json.loads(read_result(ResultsDirectory(path), "result.json", _MAX_RESULT_BYTES))
    except (DamagedResults, ValueError, RecursionError):
        return False
    return isinstance(document, dict) and "n_total_trials" in document


def _directories(path: Path) -> list[Path]:
    try:
        with os.scandir(path) as entries:
            return sorted(path / entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}") from error
