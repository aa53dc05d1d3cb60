"""A Python that has Harbor 0.25.0, in a virtual environment outside the checkout, made once for each requirements.lock."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

LOCK = Path(__file__).with_name("requirements.lock")
OLDEST = (3, 12)  # what Harbor 0.25.0 needs
_NEWEST_MINOR = 14  # what the lock was made to cover


def harbor_python() -> Path:
    """The interpreter; the first call in a machine's life takes about a minute and needs the package index."""
    home = _cache() / f"harbor-{hashlib.sha256(LOCK.read_bytes()).hexdigest()[:16]}"
    home.parent.mkdir(parents=True, exist_ok=True)
    with home.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / "ready").exists():
            _install(home)
            (home / "ready").touch()
    return home / "bin/python"


def _cache() -> Path:
    return Path(os.environ.get("MULTISTEP_CACHE") or Path.home() / ".cache/multistep")


def _install(home: Path) -> None:
    shutil.rmtree(home, ignore_errors=True)
    _run([str(find_python()), "-m", "venv", str(home)])
    # --no-deps: the lock is complete, and Harbor's own wish for certifi is overridden in it (overrides.txt).
    pip = [str(home / "bin/python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    _run([*pip, "--no-deps", "--require-hashes", "--only-binary", ":all:", "-r", str(LOCK)])


def find_python() -> Path:
    """An interpreter that Harbor can run on: from PATH, or one that pyenv installed."""
    for candidate in _candidates():
        if _works(candidate):
            return candidate
    wanted = ".".join(map(str, OLDEST))
    raise RuntimeError(f"no Python of {wanted} to 3.{_NEWEST_MINOR} found on PATH or under pyenv; Harbor 0.25.0 needs one")


def _candidates() -> Iterator[Path]:
    names = [f"python3.{minor}" for minor in range(_NEWEST_MINOR, OLDEST[1] - 1, -1)]
    versions = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    for name in reversed(names):
        if found := shutil.which(name):
            yield Path(found)
        yield from sorted(versions.glob(f"*/bin/{name}"))


def _works(python: Path) -> bool:
    """A shim of pyenv may be there without an interpreter behind it."""
    check = f"import sys, venv, ensurepip; sys.exit(sys.version_info < {OLDEST})"
    return subprocess.run([python, "-c", check], capture_output=True, check=False).returncode == 0


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{(done.stderr or done.stdout)[-2000:]}")
