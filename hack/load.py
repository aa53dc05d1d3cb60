"""What the machine has left: cores that nobody else uses, for tests of the cluster side by side, and memory."""

import math
import os
import time
from pathlib import Path

_STAT, _MEMORY = Path("/proc/stat"), Path("/proc/meminfo")
_PER_CORE = 2  # these tests wait most of their time
_LEAST, _MOST = 2, 8
_SAMPLE_SECONDS = 2.0


def workers() -> int:
    """Workers of pytest-xdist for tests of the cluster, on this machine, now."""
    cores = len(os.sched_getaffinity(0))
    return workers_for(cores, busy_cores(cores))


def workers_for(cores: int, busy: float) -> int:
    """Two for each core that is free, at least 2 and at most 8."""
    return min(_MOST, max(_LEAST, math.ceil(_PER_CORE * (cores - busy))))


def busy_cores(cores: int) -> float:
    """How many cores work at this moment. Not the load average: it still counts what our own unit tests did a minute ago."""
    if not _STAT.exists():
        return os.getloadavg()[0]
    before = _ticks(_STAT.read_text())
    time.sleep(_SAMPLE_SECONDS)
    after = _ticks(_STAT.read_text())
    return cores * busy_share(before, after)


def busy_share(before: tuple[int, int], after: tuple[int, int]) -> float:
    """The part of the time between two samples (idle and all ticks) that was not idle."""
    idle, total = after[0] - before[0], after[1] - before[1]
    return 1 - idle / total if total > 0 else 0.0


def _ticks(stat: str) -> tuple[int, int]:
    fields = [int(word) for word in stat.splitlines()[0].split()[1:9]]  # user nice system idle iowait irq softirq steal
    return fields[3] + fields[4], sum(fields)


def free_bytes() -> int:
    """Memory that programs can still have; nothing where the machine does not say it."""
    lines = _MEMORY.read_text().splitlines() if _MEMORY.exists() else []
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
