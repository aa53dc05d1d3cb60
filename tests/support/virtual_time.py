"""An event loop whose clock jumps to the next timer: hours pass at once, and runs are deterministic."""

from __future__ import annotations

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec

P = ParamSpec("P")


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """A loop for code without IO: it raises an error when a task waits for anything but timers and other tasks."""

    def __init__(self) -> None:
        self._passed = 0.0
        self._jumping = _Jumping(self)
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._passed

    def jump(self, seconds: float | None) -> None:
        """Advance the clock by `seconds`. Raise RuntimeError if it is None: no timer is left."""
        if seconds is None:
            raise RuntimeError("nothing will ever happen: everybody waits")
        self._passed += seconds


class _Jumping(selectors.SelectSelector):
    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout != 0:
            self._loop.jump(timeout)
        return ready


def in_virtual_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run a test in a VirtualTimeLoop that starts at time 0."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            runner.run(test(*args, **kwargs))

    return run
