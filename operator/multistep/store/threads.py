"""The few threads in which a volume blocks, so that the event loop does not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import ParamSpec, TypeVar

from ..errors import StoreError

P = ParamSpec("P")
T = TypeVar("T")


class Threads:
    """A bounded pool. number: the most threads."""

    def __init__(self, number: int) -> None:
        self._pool = ThreadPoolExecutor(number, thread_name_prefix="store")

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call it in a thread. When cancelled this waits for the call to end: it may use files that are closed next."""
        job = self._pool.submit(partial(function, *args, **kwargs))
        waiting = asyncio.wrap_future(job)
        try:
            return await asyncio.shield(waiting)
        except asyncio.CancelledError:
            if not job.cancel():
                await asyncio.wait([waiting])
                waiting.cancelled() or waiting.exception()  # looked at, else asyncio reports it as forgotten
            raise

    def close(self) -> None:
        """Take no more work; what runs ends by itself."""
        self._pool.shutdown(wait=False)


@contextmanager
def as_store_error(what: str) -> Iterator[None]:
    """Turn an OSError into a StoreError that says what was being done."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"{what}: {error.strerror or error}") from error
