"""Limits on the processes that fetch and read tasks. These processes import this module at their start, so it imports little."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

CPU_SECONDS: Final = 10
WALL_SECONDS: Final = 120.0
MEMORY_BYTES: Final = 256 << 20
CONTENTS_BYTES: Final = 512 << 20  # maximum total size of a task's uploads. Through links, a directory may be in several uploads
_FILE_BYTES: Final = 576 << 20
_OPEN_FILES: Final = 64
_NICENESS: Final = 5

CONFIG_BYTES: Final = 256 << 10
ANSWER_BYTES: Final = 2 << 20  # maximum size of the JSON message with task.toml, the instructions and the compose files


def limit_process(cpu_seconds: int) -> None:
    """Limit this process's memory, CPU time, wall time and files, and lower its priority below the operator's."""
    limit_resources(data=MEMORY_BYTES, file_size=_FILE_BYTES, open_files=_OPEN_FILES, cpu_seconds=cpu_seconds)
    resource.setrlimit(resource.RLIMIT_NPROC, (0, resource.getrlimit(resource.RLIMIT_NPROC)[1]))  # forbids child processes
    signal.setitimer(signal.ITIMER_REAL, WALL_SECONDS)
    os.nice(_NICENESS)


def limit_resources(*, data: int, file_size: int, open_files: int, cpu_seconds: int) -> None:
    """Limit this process's memory and file size (in bytes), open files and CPU time. Lower limits of the process stay."""
    wanted = {
        resource.RLIMIT_DATA: data,
        resource.RLIMIT_FSIZE: file_size,
        resource.RLIMIT_NOFILE: open_files,
        resource.RLIMIT_CPU: cpu_seconds,
        resource.RLIMIT_CORE: 0,
    }
    for limit, soft in wanted.items():
        most = resource.getrlimit(limit)[1]
        # SIGXCPU at the soft limit comes before SIGKILL at the hard limit, so that the exit status shows the cause.
        hard = soft + 1 if limit == resource.RLIMIT_CPU else soft
        if most != resource.RLIM_INFINITY:
            soft, hard = min(soft, most), min(hard, most)
        resource.setrlimit(limit, (soft, hard))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a write beyond the file size limit then raises an OSError


@contextmanager
def more_processes() -> Iterator[None]:
    """Return a context in which this process may start a program, although limit_process forbids it. The program must limit
    itself."""
    limit = resource.getrlimit(resource.RLIMIT_NPROC)
    resource.setrlimit(resource.RLIMIT_NPROC, (limit[1], limit[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NPROC, limit)


def child_environment(*passed: str) -> dict[str, str]:
    """Return the environment variables of a child process. They include those of the operator's variables that ``passed`` names."""
    given = {name: os.environ[name] for name in ("PATH", "LANG", *passed) if name in os.environ}
    return given | {"MALLOC_ARENA_MAX": "2", "PYTHONDONTWRITEBYTECODE": "1", "HOME": "/nonexistent"}
