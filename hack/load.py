"""Measure the machine's busy cores and available memory, to choose the number of parallel tests."""

import math
import os
import time
from pathlib import Path

_STAT, _MEMORY = Path("/proc/stat"), Path("/proc/meminfo")
_PER_CORE = 2  # workers per idle core, because tests on a cluster mostly wait
_MIN, _MAX = 2, 8
_SAMPLE_SECONDS = 2.0


def workers() -> int:
    """Return the number of pytest-xdist workers for cluster tests, from the current load."""
    cores = len(os.sched_getaffinity(0))
    return workers_for(cores, busy_cores(cores))


def workers_for(cores: int, busy: float) -> int:
    """Return two workers per idle core, at least 2 and at most 8."""
    return min(_MAX, max(_MIN, math.ceil(_PER_CORE * (cores - busy))))


def busy_cores(cores: int) -> float:
    """Return the number of busy cores, measured from CPU times, because the load average still includes tests that just finished.
    Processes with a nice value do not count, because they give way to tests."""
    if not _STAT.exists():
        return os.getloadavg()[0]
    before = _ticks(_STAT.read_text())
    time.sleep(_SAMPLE_SECONDS)
    after = _ticks(_STAT.read_text())
    return cores * busy_share(before, after)


def busy_share(before: tuple[int, int], after: tuple[int, int]) -> float:
    """Return the share of busy time between two samples of (idle ticks, all ticks)."""
    idle, total = after[0] - before[0], after[1] - before[1]
    return 1 - idle / total if total > 0 else 0.0


def busy_seconds() -> float:
    """Return the CPU seconds that the machine has worked since it started, or 0 if it does not report them."""
    if not _STAT.exists():
        return 0.0
    fields = _fields(_STAT.read_text())
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


def _ticks(stat: str) -> tuple[int, int]:
    fields = _fields(stat)
    return fields[1] + fields[3] + fields[4], sum(fields)


def _fields(stat: str) -> list[int]:
    return [int(word) for word in stat.splitlines()[0].split()[1:9]]  # user, nice, system, idle, iowait, irq, softirq and steal


def free_bytes() -> int:
    """Return the available memory in bytes, or 0 if the machine does not report it."""
    lines = _MEMORY.read_text().splitlines() if _MEMORY.exists() else []
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
