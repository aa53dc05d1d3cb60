"""Build and load the images of cases: one image for all cases whose directories environment/ are equal."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from .case import Case, CaseError

REPOSITORY: Final = "localhost/multistep-conformance"
CHECKOUT: Final = Path(__file__).resolve().parents[2]
_DIGEST_LENGTH = 12
_SHOWN_LINES = 12


class Images:
    """The images of a run, by case. If a task names an image, which the cluster may not have, its case gets the built image that
    most cases share."""

    def __init__(self, cases: Iterable[Case]) -> None:
        self._contexts: dict[str, Path] = {}
        self._images: dict[str, str] = {}
        counts: dict[str, int] = {}
        for case in cases:
            if (context := case.directory / "environment") and (context / "Dockerfile").is_file():
                name = f"{REPOSITORY}:{environment_digest(context)[:_DIGEST_LENGTH]}"
                self._contexts.setdefault(name, context)
                self._images[case.name] = name
                counts[name] = counts.get(name, 0) + 1
        self._common = max(counts, key=lambda name: counts[name], default=None)
        self._failed: dict[str, str] = {}

    @property
    def names(self) -> list[str]:
        """Return the names of all images to build."""
        return list(self._contexts)

    def context(self, name: str) -> Path | None:
        """Return the directory with the Dockerfile of an image; None for an image of another name."""
        return self._contexts.get(name)

    def of(self, case: Case) -> str | None:
        """Return the image of a case; None if its task has none. Raise CaseError if its build failed."""
        name = self._images.get(case.name) or (self._common if case.names_image else None)
        if name in self._failed:
            raise CaseError(f"its image could not be built:\n{self._failed[name]}")
        return name

    def build(self, name: str) -> bool:
        """Build an image and load it into the cluster. Return whether both succeeded."""
        context = self._contexts[name]
        for arguments in (("build", "--tag", name, str(context)), ("load", name)):
            done = subprocess.run(
                [sys.executable, "-m", "localkube", *arguments],
                cwd=CHECKOUT,
                env=os.environ,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
            )
            if done.returncode != 0:
                output = (done.stderr + done.stdout).rstrip().splitlines()
                self._failed[name] = "\n".join(output[-_SHOWN_LINES:])
                return False
        return True


def environment_digest(directory: Path) -> str:
    """Return a digest of the build's input: names, contents, links, and executable bits."""
    digest = hashlib.sha256()
    for path in sorted(directory.rglob("*")):
        if path.is_symlink():
            kind, data = "link", os.fsencode(path.readlink())
        elif path.is_file():
            kind, data = "program" if path.stat().st_mode & 0o111 else "file", path.read_bytes()
        else:
            kind, data = "directory", b""
        for part in (kind.encode(), os.fsencode(path.relative_to(directory)), data):
            digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()
