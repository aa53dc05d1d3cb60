"""Provide a Python interpreter with Harbor 0.26.0, installed outside of the checkout.

The lock file of the agent host's tests names the packages; when it changes, they are installed again. The interpreter is in a
virtual environment of one of the machine's interpreters or, if none is suitable, in a separate Debian system (chroot.py).
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tests.harbor import chroot

LOCK = Path(__file__).parents[2] / "agent-host/requirements/test.lock"
OLDEST = (3, 12)  # the oldest version that Harbor 0.26.0 supports
_NEWEST_MINOR = 14  # Python 3.14 is the newest version for which the lock file has packages
# --no-deps: the lock file lists all packages.
_PIP_OPTIONS = ("--disable-pip-version-check", "--quiet", "--no-deps", "--require-hashes", "--only-binary", ":all:")


class Python(Protocol):
    """A Python interpreter with Harbor installed."""

    def run(self, script: Path, directory: Path) -> subprocess.CompletedProcess[str]:
        """Run a script whose argument is the directory. The script must not write to the directory."""

    def pytest(self, project: Path, runner: Path) -> subprocess.CompletedProcess[str]:
        """Run pytest in the directory ``project``, with the path of the runner's program in the variable MULTISTEP_RUNNER."""


@dataclass(frozen=True)
class HostPython:
    """A virtual environment of one of the machine's interpreters."""

    executable: Path

    def run(self, script: Path, directory: Path) -> subprocess.CompletedProcess[str]:
        env = os.environ | chroot.OFFLINE
        return subprocess.run([self.executable, script, directory], env=env, capture_output=True, text=True, check=False)

    def pytest(self, project: Path, runner: Path) -> subprocess.CompletedProcess[str]:
        env = os.environ | {"MULTISTEP_RUNNER": str(runner)}
        command = [str(self.executable), "-B", "-m", "pytest", "-q"]
        return subprocess.run(command, cwd=project, env=env, capture_output=True, text=True, check=False)


def harbor_python() -> Python:
    """Return a Python with Harbor. The first call on a machine takes one or two minutes and needs the package index."""
    home = _cache() / f"harbor-{_digest()}"
    home.parent.mkdir(parents=True, exist_ok=True)
    with home.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (home / "ready").exists():
            return HostPython(home / "bin/python")
        if python := find_python():
            return _on_host(python, home)
        return in_chroot(_cache())


def in_chroot(cache: Path) -> Python:
    """Return a Python with Harbor in a chroot, for a machine that has no suitable interpreter."""
    root = cache / f"harbor-{chroot.SUITE}-{_digest()}"
    if not root.exists():
        chroot.make(root, LOCK, _PIP_OPTIONS)
    return chroot.ChrootPython(root)


def _cache() -> Path:
    return Path(os.environ.get("MULTISTEP_CACHE") or Path.home() / ".cache/multistep").absolute()


def _digest() -> str:
    return hashlib.sha256(LOCK.read_bytes()).hexdigest()[:16]


def _on_host(python: Path, home: Path) -> Python:
    shutil.rmtree(home, ignore_errors=True)
    _run([str(python), "-m", "venv", str(home)])
    _run([str(home / "bin/python"), "-m", "pip", "install", *_PIP_OPTIONS, "-r", str(LOCK)])
    (home / "ready").touch()
    return HostPython(home / "bin/python")


def find_python() -> Path | None:
    """Return an interpreter that supports Harbor, from PATH or installed by pyenv."""
    return next((candidate for candidate in _candidates() if _works(candidate)), None)


def _candidates() -> Iterator[Path]:
    names = [f"python3.{minor}" for minor in range(_NEWEST_MINOR, OLDEST[1] - 1, -1)]  # newer ones are faster
    versions = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    for name in names:
        if found := shutil.which(name):
            yield Path(found)
        yield from sorted(versions.glob(f"*/bin/{name}"))


def _works(python: Path) -> bool:
    """Return whether the interpreter runs and is new enough: a pyenv shim may exist without an interpreter."""
    check = f"import sys, venv, ensurepip; sys.exit(sys.version_info < {OLDEST})"
    return subprocess.run([python, "-c", check], capture_output=True, check=False).returncode == 0


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{(done.stderr or done.stdout)[-2000:]}")
