"""Finds the runner binary, which `build` adds to images, so that pods need no init container."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import multistep
from multistep.errors import UsageError

RUNNER_VARIABLE: Final = "MULTISTEP_RUNNER"
RUNNER_IN_IMAGE: Final = "/multistep/runner"
_PACKAGE = Path(multistep.__file__).resolve().parent


def find_runner() -> Path | None:
    """Return the runner's path: $MULTISTEP_RUNNER, else in this package or in the source checkout; None if no runner exists.
    Raises UsageError if $MULTISTEP_RUNNER is not a file."""
    if named := os.environ.get(RUNNER_VARIABLE):
        if not Path(named).is_file():
            raise UsageError(f"${RUNNER_VARIABLE} is {named}, which does not exist")
        return Path(named)
    places = [_PACKAGE / "_runner" / "runner"]
    if checkout := source_checkout():
        places.append(checkout / "runner" / "bin" / "runner")
    return next((place for place in places if place.is_file()), None)


def source_checkout() -> Path | None:
    """Return the root of the source checkout that this code runs from, or None."""
    root = _PACKAGE.parents[1]
    return root if (root / "localkube" / "__main__.py").is_file() and (root / "pyproject.toml").is_file() else None
