"""Creates the list of all files of a trial's results. It has a line of JSON for each file, directory and link, in the order of
``walk``.

A line has at most MAX_LINE_BYTES, because a long path or link target is replaced by its SHA-256.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from hashlib import _Hash

MAX_LINE_BYTES: Final = 2048

_MAX_TEXT_CHARACTERS = 600  # maximum length of a path or target, as JSON

Kind = Literal["file", "directory", "link"]


@dataclass(frozen=True)
class ListedItem:
    """A file, directory or link of the results. A file has ``size`` (in bytes) and ``sha256``, a link has ``target``."""

    path: str
    kind: Kind
    size: int = 0
    sha256: str = ""
    target: str = ""
    by_pod: bool = False
    """Whether the pod itself uploaded the file to the object store and reported its digest."""

    def fields(self) -> dict[str, Any]:
        """Return the item's fields in the list."""
        fields: dict[str, Any] = {**_text("path", self.path), "kind": self.kind}
        if self.kind == "file":
            fields |= {"size": self.size, "sha256": self.sha256}
        if self.kind == "link":
            fields |= _text("target", self.target)
        return {**fields, "reportedBy": "pod"} if self.by_pod else fields

    def line(self) -> bytes:
        """Return the item's line of the list. Bytes of a name that are not UTF-8 become lone surrogates."""
        return encode(self.fields())


def encode(fields: dict[str, Any]) -> bytes:
    """Return fields as a line of the list."""
    return json.dumps(fields).encode() + b"\n"


def _text(name: str, value: str) -> dict[str, str]:
    if len(json.dumps(value)) <= _MAX_TEXT_CHARACTERS:
        return {name: value}
    return {f"{name}Sha256": hashlib.sha256(os.fsencode(value)).hexdigest()}


@dataclass
class ListDigests:
    """Digests and totals of a list of files."""

    sha256: str = ""
    """SHA-256 of all lines."""
    files: int = 0
    bytes: int = 0
    """Total size of the files in bytes."""
    artifacts: dict[str, str] = field(default_factory=dict)
    """SHA-256 of the lines of the items below each directory of artifacts."""
    result: str = ""
    """SHA-256 of result.json."""


class ListDigester:
    """Computes the digests of a list while the list is written or read."""

    def __init__(self) -> None:
        self._whole = hashlib.sha256()
        self._artifacts: dict[str, _Hash] = {}
        self._found = ListDigests()

    def add(self, item: ListedItem, line: bytes) -> None:
        """Add the next line of the list, which describes ``item``."""
        self._whole.update(line)
        if (directory := artifacts_directory(item.path)) is not None:
            self._artifacts.setdefault(directory, hashlib.sha256()).update(line)
        if item.kind == "file":
            self._found.files += 1
            self._found.bytes += item.size
        if item.path == "result.json":
            self._found.result = item.sha256

    def digests(self) -> ListDigests:
        """Return the digests of the lines added so far."""
        self._found.sha256 = self._whole.hexdigest()
        self._found.artifacts = {directory: digest.hexdigest() for directory, digest in self._artifacts.items()}
        return self._found


def artifacts_directory(path: str) -> str | None:
    """Return the directory of artifacts (of a step or of the trial) that contains the path, or None."""
    top, *below = path.split("/", 3)
    if top == "artifacts" and below:
        return top
    return "/".join([top, *below[:2]]) if top == "steps" and len(below) == 3 and below[1] == "artifacts" else None


STATEMENT: Final = "evidence.json"
ENVELOPE: Final = "evidence.dsse.json"
FILES: Final = "evidence.files.jsonl"
OWN: Final = frozenset({STATEMENT, ENVELOPE, FILES})
