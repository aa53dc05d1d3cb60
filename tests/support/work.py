"""Measure the work of code. For Python code: lines executed and bytes allocated, which are the same on every machine and under any
load. For code that works in C, such as json and re, only CPU time shows the work."""

from __future__ import annotations

import gc
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

WIDE_FACTOR, NOISE_SECONDS = 10.0, 0.05  # 4 times the input may take this factor times the CPU time, plus these seconds


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


def superlinear(run: Callable[[int], object], few: int) -> str:
    """Return the CPU times if ``run`` takes clearly more than linear time, else "". run: works on an input of n parts; it is
    measured with n = few and n = 4 * few.

    Only two measurements that are too long count, the second one being the shortest of five runs: other processes slow this one.
    """
    for tries in (1, 5):
        pairs = [(_cpu_seconds(run, few), _cpu_seconds(run, 4 * few)) for _ in range(tries)]
        less, more = (min(each) for each in zip(*pairs, strict=True))
        if more <= WIDE_FACTOR * less + NOISE_SECONDS:
            return ""
    return f"{less:.3f} s of CPU for {few}, {more:.3f} s for {4 * few}"


def _cpu_seconds(run: Callable[[int], object], number: int) -> float:
    """Return the CPU time of this thread. Garbage collections are left out: they also visit the objects of all other tests."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        start = time.thread_time()
        run(number)
        return time.thread_time() - start
    finally:
        if enabled:
            gc.enable()
