"""Paths of the checkout and the cache, and digests of files."""

import hashlib
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from localkube.config import load_config
from localkube.locking import exclusive

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
CACHE = load_config().paths.cache_dir
_IGNORED = {"__pycache__", "bin"}


def files_below(*paths: Path) -> list[Path]:
    """Return the given files and all files below the given directories, without build outputs."""
    found = set()
    for path in paths:
        below = path.rglob("*") if path.is_dir() else [path]
        found |= {each for each in below if each.is_file() and not _IGNORED & set(each.relative_to(ROOT).parts)}
    return sorted(found)


def digest_of(files: Iterable[Path], *settings: str) -> str:
    """Return 12 hex digits of the digest of the files' paths, contents and executable bits, and of the settings."""
    digest = hashlib.sha256("\0".join(settings).encode())
    for file in files:
        content = file.read_bytes()
        digest.update(f"\0{file.relative_to(ROOT)}\0{os.access(file, os.X_OK)}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:12]


def cached(kind: str, digest: str, make: Callable[[Path], None], keep: int = 3) -> Path:
    """Return CACHE/kind/digest. If it does not exist, let `make` fill it, and delete all but the `keep` newest in CACHE/kind.

    Other processes that call this function for the same kind wait meanwhile.
    """
    directory = CACHE / kind / digest
    if not directory.exists():
        with exclusive(CACHE / f"{kind}.lock"):
            if not directory.exists():
                _fill(directory, make)
                _delete_old(directory.parent, keep)
    os.utime(directory)
    return directory


def _fill(directory: Path, make: Callable[[Path], None]) -> None:
    unfinished = directory.with_name(f"{directory.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    make(unfinished)
    unfinished.rename(directory)


def _delete_old(directory: Path, keep: int) -> None:
    finished = [path for path in directory.iterdir() if "." not in path.name]
    for old in sorted(finished, key=lambda path: path.stat().st_mtime, reverse=True)[keep:]:
        shutil.rmtree(old, ignore_errors=True)
