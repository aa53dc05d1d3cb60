"""The root file systems of images, built once by localkube and kept in the cache, for containers without a container runtime."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Final

from hack.paths import CACHE, cached
from localkube import images
from localkube.commands import capture
from localkube.config import load_config
from localkube.images import Build
from localkube.locking import exclusive
from localkube.packages import ensure_packages

_NAME: Final = "localhost/multistep-tree"
_KIND: Final = "image-trees"
_KEPT: Final = 12


@dataclass(frozen=True)
class ImageTree:
    """An image's files, and what its config sets for its containers. digest: identifies the image."""

    digest: str
    root: Path
    environment: Mapping[str, str]
    workdir: str
    user: str


@cache
def image_tree(context: Path, digest: str) -> ImageTree:
    """Return the image that the Dockerfile in `context` builds. digest: of the build's inputs. Raises LocalkubeError."""
    (CACHE / _KIND).mkdir(parents=True, exist_ok=True)
    with exclusive(CACHE / _KIND / f".{digest}.lock"):
        kept = cached(_KIND, digest, partial(_build, context, f"{_NAME}:{digest}"), _KEPT)
    config = json.loads((kept / "config.json").read_text())
    environment = dict(each.split("=", 1) for each in config.get("Env") or [])
    return ImageTree(digest, kept / "root", environment, config.get("WorkingDir") or "/", config.get("User") or "")


@cache
def named_image_tree(name: str) -> ImageTree:
    """Return the image of this name, which must be one that localkube can provide. Raises LocalkubeError."""
    with tempfile.TemporaryDirectory() as context:
        Path(context, "Dockerfile").write_text(f"FROM {name}\n")
        return image_tree(Path(context), hashlib.sha256(name.encode()).hexdigest()[:12])


def _build(context: Path, name: str, to: Path) -> None:
    config, wanted = load_config(), Build(name, context, context / "Dockerfile")
    ensure_packages()
    images.ensure_bases(config, wanted.dockerfile)
    images.build(config, wanted)
    container = capture(["buildah", "from", name]).strip()
    try:
        capture(["cp", "-a", capture(["buildah", "mount", container]).strip(), str(to / "root")])
        inspected = json.loads(capture(["buildah", "inspect", "--type", "image", name]))
        (to / "config.json").write_text(json.dumps(inspected["OCIv1"]["config"]))
    finally:
        capture(["buildah", "rm", container])
