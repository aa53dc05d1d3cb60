"""A simulated node in a thread with an event loop of its own, so that a test may block while its trials run."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self, TypeVar

import uvloop

from multistep.client.reconnecting_watch import WatchingClient
from tests.support.simulation.kubelet import Kubelet
from tests.support.simulation.runners import Runners
from tests.support.simulation.scripts import Scripts

T = TypeVar("T")


class SimulatedNode:
    """A node whose pods play the scripts of tests.support.simulation.scripts. name: the node's name; directory: for its files."""

    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        self._directory = directory
        self._scripts = Scripts()
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._stop = asyncio.Event()
        self._kubelet: Kubelet
        self._over: Future[None]

    def __enter__(self) -> Self:
        self._thread.start()
        ready = Future[None]()
        self._over = asyncio.run_coroutine_threadsafe(self._run(ready), self._loop)
        wait([ready, self._over], return_when=FIRST_COMPLETED)
        if self._over.done():
            self._over.result()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._over.result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def release(self, pod: str) -> None:
        """Let the phase that holds in this pod go on. It may not have reached its line yet."""

        async def released() -> bool:
            if pod in self._scripts.held:
                self._scripts.release(pod)
                return True
            return False

        await self._eventually(released)

    async def end_container(self, pod: dict[str, Any], code: int) -> None:
        """End the pod's container with this exit code."""
        await self._in_thread(self._kubelet.end_container(pod, code))

    async def _eventually(self, check: Callable[[], Awaitable[bool]]) -> None:
        async def wait() -> None:
            while not await check():
                await asyncio.sleep(0.01)

        await self._in_thread(wait())

    async def _in_thread(self, work: Awaitable[T]) -> T:
        async def run() -> T:
            return await work

        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(run(), self._loop))

    async def _run(self, ready: Future[None]) -> None:
        async with node(self.name, self._directory, Runners(self._scripts.play), forget=self._scripts.forget) as self._kubelet:
            ready.set_result(None)
            await self._stop.wait()


@asynccontextmanager
async def node(
    name: str, directory: Path, runners: Runners, *, forget: Callable[[str], object] = lambda _: None
) -> AsyncIterator[Kubelet]:
    """Run a simulated node in this event loop. forget: called with the name of each pod that is gone."""

    def deleted(pod: dict[str, Any]) -> None:
        runners.deleted(pod)
        forget(pod["metadata"]["name"])

    async with await WatchingClient.connect() as client:
        kubelet = runners.kubelet = Kubelet(client, name, runners.session, runners.created, deleted)
        async with kubelet.running(directory):
            yield kubelet
