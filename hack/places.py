"""Where things are, and digests of files to name them by."""

import hashlib
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from localkube.config import load_config

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
CACHE = load_config().paths.cache_dir
_IGNORED = {"__pycache__", "bin"}


def files_below(*paths: Path) -> list[Path]:
    """The files themselves and those in directories, without what is built from them."""
    found = set()
    for path in paths:
        below = path.rglob("*") if path.is_dir() else [path]
        found |= {each for each in below if each.is_file() and not _IGNORED & set(each.relative_to(ROOT).parts)}
    return sorted(found)


def digest_of(files: Iterable[Path], *settings: str) -> str:
    """12 hex digits that change with the files' names, contents and permissions, and with the settings."""
    digest = hashlib.sha256("\0".join(settings).encode())
    for file in files:
        content = file.read_bytes()
        digest.update(f"\0{file.relative_to(ROOT)}\0{os.access(file, os.X_OK)}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:12]


def cached(kind: str, digest: str, make: Callable[[Path], None]) -> Path:
    """The cache's directory of that kind and digest, filled by `make` if it is not there; others of the kind go."""
    directory = CACHE / kind / digest
    if not directory.exists():
        unfinished = directory.with_name(f"{digest}.{os.getpid()}")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        make(unfinished)
        _publish(unfinished, directory)
        _forget_old(directory.parent)
    os.utime(directory)
    return directory


def _publish(unfinished: Path, directory: Path) -> None:
    """Another process may have been faster: then its work is as good as ours."""
    try:
        unfinished.rename(directory)
    except OSError:
        shutil.rmtree(unfinished)
        if not directory.exists():
            raise


def _forget_old(directory: Path, keep: int = 3) -> None:
    finished = [path for path in directory.iterdir() if "." not in path.name]
    for old in sorted(finished, key=lambda path: path.stat().st_mtime, reverse=True)[keep:]:
        shutil.rmtree(old, ignore_errors=True)
