"""Serialize commands that change the cluster, across processes and checkouts."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from localkube.commands import print_line


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Return a context that holds an exclusive lock on the file, and deletes the file at its end."""
    descriptor = _acquire(path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _acquire(path: Path) -> int:
    """Lock the file at `path`. Retry if the previous holder deleted the file while this process waited for its lock."""
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        _lock(descriptor)
        if _is_still_at(path, descriptor):
            return descriptor
        os.close(descriptor)


def _lock(descriptor: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print_line("another localkube command is at work: waiting for it")
        fcntl.flock(descriptor, fcntl.LOCK_EX)


def _is_still_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
