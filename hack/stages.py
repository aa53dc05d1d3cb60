"""Stages of work: one line when each begins and one with its seconds when it is done, on stderr."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

_done: list[tuple[str, float]] = []


class Failure(Exception):
    """A stage cannot go on; the text says what to do."""


def say(text: str) -> None:
    """A line for the person who waits. stdout is for results."""
    print(text, file=sys.stderr, flush=True)


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Tell that a stage begins, and when it is done how long it took."""
    say(f"==> {name}")
    start = time.monotonic()
    yield
    seconds = time.monotonic() - start
    _done.append((name, seconds))
    say(f"==> {name}: {seconds:.1f} s")


def summary() -> str:
    """The seconds of all stages that are done."""
    width = max((len(name) for name, _ in _done), default=0)
    return "\n".join(f"    {name:<{width}}  {seconds:6.1f} s" for name, seconds in _done)
