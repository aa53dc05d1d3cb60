"""Measure the work of Python code by what is the same on every machine and under any load: lines executed and bytes allocated."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any


@dataclass
class Work:
    """What code did. events: number of calls, returns and executed lines; peak_bytes: the most memory it held at one time."""

    events: int = 0
    peak_bytes: int = 0


@contextmanager
def measured() -> Iterator[Work]:
    """Measure the with block. Only functions that it calls count: Python traces frames that start after the tracer is set."""
    work = Work()

    def count(frame: FrameType, event: str, value: Any) -> Any:
        work.events += 1
        return count

    before = sys.gettrace()
    tracemalloc.start()
    sys.settrace(count)
    try:
        yield work
    finally:
        sys.settrace(before)
        work.peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
