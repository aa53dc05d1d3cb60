"""The blocking client: it runs the asynchronous client in a separate thread, which renews leases while the caller computes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Self, TypeVar

from multistep.api.sweep.sweep import SweepStatus
from multistep.client.async_client import AsyncClient
from multistep.client.run import AsyncRun, Rollout
from multistep.client.submission import Agent, Task

_T = TypeVar("_T")


class Client(AbstractContextManager["Client"]):
    """Runs sweeps in a cluster. Use it as a context manager:

        with Client() as client:
            for rollout in client.submit(["tasks/hello"], agents=["oracle"], attempts=8):
                print(rollout.task, rollout.reward)

    Without a ``with`` block, as across the cells of a notebook, call close() at the end. The client connects at the start of the
    ``with`` block, or at the first call. After the block, or close(), it cannot be used again. Its methods have the same arguments
    as those of ``AsyncClient``. Several threads may use one client. A separate thread renews the sweeps' leases, even while the
    caller computes.
    """

    def __init__(self, *, namespace: str | None = None, kubeconfig: str | None = None, context: str | None = None) -> None:
        """namespace, kubeconfig, context: as the options of `multistep`; by default those of the current kubeconfig."""
        self._client = AsyncClient(namespace=namespace, kubeconfig=kubeconfig, context=context)
        self._loop: asyncio.AbstractEventLoop
        self._thread: threading.Thread
        self._lock = threading.Lock()  # guards the next two fields while the client connects or closes
        self._connected = False
        self._closed = False

    def __enter__(self) -> Self:
        self._connect()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the sweeps that this client submitted and that have not finished, except those without a lease, and disconnect."""
        with self._lock:
            connected, self._connected, self._closed = self._connected, False, True
        if connected:
            try:
                self._run(self._client.__aexit__())
            finally:
                self._end()

    def submit(
        self,
        tasks: Sequence[Task],
        *,
        agents: Sequence[Agent] = ("oracle",),
        attempts: int = 1,
        parallelism: int = 10,
        name: str | None = None,
        image: str | None = None,
        lease_seconds: int | None = 60,
        spec: Mapping[str, Any] | None = None,
    ) -> Run:
        """Create a sweep of tasks x agents x attempts. Arguments and errors are those of ``AsyncClient.submit``."""
        submitted = self._client.submit(
            tasks,
            agents=agents,
            attempts=attempts,
            parallelism=parallelism,
            name=name,
            image=image,
            lease_seconds=lease_seconds,
            spec=spec,
        )
        return Run(self, self._wait(submitted))

    def get(self, name: str) -> Run:
        """Return a sweep that exists. Its lease is not renewed. Raises UsageError if no such sweep exists."""
        return Run(self, self._wait(self._client.get(name)))

    def file(self, rollout: Rollout, path: str) -> bytes:
        """Return a file of the trial's results. Raises StoreError if there is no such file."""
        return self._wait(self._client.file(rollout, path))

    def fetch(self, rollout: Rollout, directory: Path | str) -> None:
        """Fetch all files of the trial into a directory, as `multistep results` does. Raises StoreError if the trial has no
        results."""
        self._wait(self._client.fetch(rollout, directory))

    def _wait(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """Connect if necessary, and run a coroutine in the client's thread; Ctrl-C cancels it. Raises RuntimeError if the client is
        closed."""
        try:
            self._connect()
        except BaseException:
            coroutine.close()
            raise
        return self._run(coroutine)

    def _connect(self) -> None:
        with self._lock:
            if self._closed:
                raise RuntimeError("the client is closed: create another one")
            if self._connected:
                return
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._loop.run_forever, name="multistep-client", daemon=True)
            self._thread.start()
            try:
                self._run(self._client.__aenter__())
            except BaseException:
                self._end()
                raise
            self._connected = True

    def _run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Run:
    """A sweep. ``for rollout in run`` yields each trial once, when it finishes. The loop ends when the sweep has finished."""

    def __init__(self, client: Client, run: AsyncRun) -> None:
        self._client, self._run = client, run
        self.name, self.namespace = run.name, run.namespace

    def __repr__(self) -> str:
        return f"Run(name={self.name!r}, namespace={self.namespace!r})"

    def __iter__(self) -> Iterator[Rollout]:
        found = self._run.__aiter__()
        try:
            while (each := self._client._wait(_next(found))) is not None:
                yield each
        finally:
            self._client._wait(found.aclose())

    def results(self) -> list[Rollout]:
        """Wait until the sweep has finished, and return all of its trials."""
        return list(self)

    def status(self) -> SweepStatus:
        """Return the sweep's current status."""
        return self._client._wait(self._run.status())

    def stop(self) -> None:
        """Stop the sweep: active trials are stopped, and their pods are deleted. The sweep and its results remain."""
        self._client._wait(self._run.stop())

    def delete(self) -> None:
        """Delete the sweep with its trials and their pods."""
        self._client._wait(self._run.delete())


async def _next(rollouts: Any) -> Rollout | None:
    found: Rollout | None = await anext(rollouts, None)
    return found
