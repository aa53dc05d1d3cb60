"""Reads and writes bundles in immutable ConfigMaps, which `multistep package` creates, and reads inline tasks in a trial's spec."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from multistep.api.common.base_model import GROUP
from multistep.api.trial.task_source import InlineSource
from multistep.api.trial.values import TOO_LARGE
from multistep.errors import InvalidSpec, NotFound, SourceError
from multistep.sources.task.bundle import DEFAULT_LIMITS, Bundle, BundleEntry, BundleLimits, digest_of, safe_path

PART_BYTES = 700 * 1024  # 933 KiB in base64, because Kubernetes limits an object to about 1 MiB
DIGEST_ANNOTATION = f"{GROUP}/bundle-digest"
_KEY = "part"
_NAME_LENGTH = 200

GetConfigMap = Callable[[str], Awaitable[Mapping[str, Any]]]


def split_bundle(data: bytes, name: str, *, part_bytes: int = PART_BYTES) -> list[dict[str, Any]]:
    """Return ConfigMaps with the bundle's bytes. Their names are ``NAME-bundle-DIGEST-N``."""
    digest = digest_of(data)
    stem = f"{name[:_NAME_LENGTH].rstrip('-.')}-bundle-{digest.removeprefix('sha256:')[:12]}"
    parts = [data[start : start + part_bytes] for start in range(0, max(len(data), 1), part_bytes)]
    return [_config_map(f"{stem}-{number}", digest, part) for number, part in enumerate(parts)]


def join_bundle(config_maps: Sequence[Mapping[str, Any]], digest: str, limits: BundleLimits = DEFAULT_LIMITS) -> bytes:
    """Return the bundle's bytes from its parts, in order. Raises SourceError if a part is invalid or the digest differs."""
    data = b"".join(map(_part, config_maps))
    if len(data) > limits.compressed:
        raise SourceError(f"the bundle has {len(data)} bytes, more than the limit of {limits.compressed}")
    if digest_of(data) != digest:
        raise SourceError(
            f"the ConfigMaps {', '.join(map(_name, config_maps))} hold a bundle with digest {digest_of(data)}, "
            f"not {digest}: package the task again"
        )
    return data


async def spool_bundle(get: GetConfigMap, names: Sequence[str], path: Path, limits: BundleLimits = DEFAULT_LIMITS) -> None:
    """Write a bundle's parts to a file. Each line has a ConfigMap's name and its part as base64. Only one part is in memory at a
    time.

    ``get`` reads a ConfigMap. A missing ConfigMap raises a transient SourceError, because it may still be created.
    """
    left = limits.compressed // 3 * 4 + 4 * len(names)
    with path.open("w", encoding="ascii", errors="replace") as file:
        for name in names:
            try:
                config_map = await get(name)
            except NotFound as error:
                raise SourceError(f"ConfigMap {name} does not exist: apply it together with the trial", transient=True) from error
            text = (config_map.get("binaryData") or {}).get(_KEY)
            if text is None:
                raise SourceError(f"the ConfigMap {name} is not part of a bundle: it has no binaryData.{_KEY}")
            left -= len(text)
            if left < 0:
                text = f"the bundle has more than {limits.compressed} bytes, which is the limit"
                raise SourceError(text, reason=TOO_LARGE)
            file.write(f"{name} {text}\n")


def _config_map(name: str, digest: str, part: bytes) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "annotations": {DIGEST_ANNOTATION: digest}},
        "immutable": True,
        "binaryData": {_KEY: base64.b64encode(part).decode()},
    }


def _part(config_map: Mapping[str, Any]) -> bytes:
    try:
        return base64.b64decode(config_map["binaryData"][_KEY], validate=True)
    except (KeyError, TypeError, binascii.Error) as error:
        raise SourceError(f"the ConfigMap {_name(config_map)} is not part of a bundle: it has no binaryData.{_KEY}") from error


def _name(config_map: Mapping[str, Any]) -> str:
    return str(config_map.get("metadata", {}).get("name", "(no name)"))


_FIELD = "spec.task.inline.files"


def inline_bundle(source: InlineSource) -> Bundle:
    """Return the bundle of spec.task.inline. Files named *.sh are executable. Raises InvalidSpec for an invalid path."""
    if "task.toml" in source.files:
        raise InvalidSpec(f"{_FIELD}: task.toml cannot be a file here: put its content into spec.task.inline.config")
    try:
        files = [(safe_path(path), text) for path, text in source.files.items()]
        if len(dict(files)) < len(files):
            raise SourceError("two paths are the same")
        return Bundle.from_entries({path: _inline_entry(path, text) for path, text in files}, source.config)
    except (SourceError, UnicodeEncodeError) as error:
        raise InvalidSpec(f"{_FIELD}: {error}") from error


def _inline_entry(path: str, text: str) -> BundleEntry:
    return BundleEntry("file", 0o755 if path.endswith(".sh") else 0o644, data=text.encode())
