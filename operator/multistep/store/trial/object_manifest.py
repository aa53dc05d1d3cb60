"""The manifest of a trial in the object store, which has a line of JSON for each file, directory and link of the results."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from multistep.api.common.safe_paths import is_canonical
from multistep.errors import StoreError

DIRECT_UPLOADS = "sent"  # prefix of a trial's objects that its pods uploaded directly

NAME = "manifest.jsonl"
VERSION = 1
_FILES, _NAMED = "files", "named"
_PLAIN = re.compile(r"(?:[\w.@+=,~ -]+/)*[\w.@+=,~ -]+")
_MAX_PLAIN_BYTES = 700  # longest path in an object's name. With the prefix and the trial, S3 allows 1024 bytes

Kind = Literal["file", "directory", "link"]


@dataclass(frozen=True)
class ManifestLine:
    """The manifest's line of a file, directory or link. Lines have the order of the tar.

    Only files have ``size``, ``sha256``, ``object`` (the object's name below the trial's prefix) and ``version`` (the object's
    ETag, if a pod uploaded the file directly).
    """

    path: str
    kind: Kind
    mode: int
    """Permission bits."""
    mtime: int
    """Whole seconds since the epoch."""
    target: str = ""
    size: int = 0
    sha256: str = ""
    object: str = ""
    version: str = ""

    def encode(self) -> bytes:
        """Return the line as JSON. Bytes of a path that are not UTF-8 become lone surrogates."""
        fields = {name: value for name, value in asdict(self).items() if value != "" or name in ("path",)}
        return json.dumps(fields).encode() + b"\n"

    @classmethod
    def decode(cls, data: bytes) -> ManifestLine:
        """Parse a line. Raises StoreError if it is invalid."""
        try:
            return cls(**json.loads(data))
        except (ValueError, TypeError) as error:
            raise StoreError(f"the manifest has an invalid line: {error}") from None


def head(trial: Mapping[str, Any]) -> bytes:
    """Return the manifest's first line, with the format's version and the trial."""
    return json.dumps({"version": VERSION, **trial}).encode() + b"\n"


def check_head(data: bytes) -> None:
    """Raise StoreError if this operator does not know the version in the manifest's first line."""
    try:
        version = json.loads(data)["version"]
    except (ValueError, TypeError, KeyError):
        raise StoreError("the manifest has no version") from None
    if version != VERSION:
        raise StoreError(f"the manifest has version {version!r}; this operator reads version {VERSION}")


def object_name(path: str) -> str:
    """Return the name of a file's object. It has the file's path if every store and tool accepts it, otherwise the path's
    digest."""
    plain = _PLAIN.fullmatch(path) and path.isprintable() and len(os.fsencode(path)) <= _MAX_PLAIN_BYTES
    if plain and is_canonical(path):
        return f"{_FILES}/{path}"
    return f"{_NAMED}/{hashlib.sha256(os.fsencode(path)).hexdigest()}"
