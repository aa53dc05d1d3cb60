"""Report the start and the duration of each stage on stderr."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

_done: list[tuple[str, float]] = []


class Failure(Exception):
    """A stage failed. The message states the reason and, if known, the fix."""


def print_line(text: str) -> None:
    """Print a progress line on stderr, because stdout is for results."""
    print(text, file=sys.stderr, flush=True)


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Report the start of a stage and, when it has finished, its duration."""
    print_line(f"==> {name}")
    start = time.monotonic()
    yield
    seconds = time.monotonic() - start
    _done.append((name, seconds))
    print_line(f"==> {name}: {seconds:.1f} s")


def summary() -> str:
    """Return a table with the duration in seconds of each finished stage."""
    width = max((len(name) for name, _ in _done), default=0)
    return "\n".join(f"    {name:<{width}}  {seconds:6.1f} s" for name, seconds in _done)
