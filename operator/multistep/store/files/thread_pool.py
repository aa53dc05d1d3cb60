"""A small thread pool for a volume's blocking calls, which must not block the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import ParamSpec, TypeVar

from multistep.errors import StoreError

P = ParamSpec("P")
T = TypeVar("T")


class Threads:
    """A bounded thread pool. number: maximum number of threads."""

    def __init__(self, number: int) -> None:
        self._pool = ThreadPoolExecutor(number, thread_name_prefix="store")

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function in a thread. If cancelled, wait for the call to end: it may use files that the caller closes next."""
        job = self._pool.submit(partial(function, *args, **kwargs))
        waiting = asyncio.wrap_future(job)
        try:
            return await asyncio.shield(waiting)
        except asyncio.CancelledError:
            if not job.cancel():
                await asyncio.wait([waiting])
                waiting.cancelled() or waiting.exception()  # asyncio logs exceptions that nobody retrieves
            raise

    def close(self) -> None:
        """Reject further calls. Running calls still finish."""
        self._pool.shutdown(wait=False)


@contextmanager
def as_store_error(what: str) -> Iterator[None]:
    """Convert an OSError to a StoreError. what: name of the operation for the message."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"{what}: {error.strerror or error}") from error
