"""The blocking client: it runs the asynchronous client in a separate thread, which renews leases while the caller computes."""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from multistep.client.async_client import AsyncClient
from multistep.client.rollouts.groups import ActiveGroup, AsyncRollouts, Group
from multistep.client.run import AsyncRun, Rollout

_T = TypeVar("_T")
_P = ParamSpec("_P")


def _of_client(method: Callable[Concatenate[AsyncClient, _P], Coroutine[Any, Any, _T]]) -> Callable[Concatenate[Client, _P], _T]:
    """Return the blocking method of ``Client`` with the parameters, types and docstring of a method of ``AsyncClient``."""

    @functools.wraps(method)
    def blocking(client: Client, /, *args: _P.args, **options: _P.kwargs) -> _T:
        return client._wait(method(client._client, *args, **options))

    return blocking


def _run_of_client(
    method: Callable[Concatenate[AsyncClient, _P], Coroutine[Any, Any, AsyncRun]],
) -> Callable[Concatenate[Client, _P], Run]:
    """Do the same for a method that returns an ``AsyncRun``: the blocking method returns a ``Run``."""

    @functools.wraps(method)
    def blocking(client: Client, /, *args: _P.args, **options: _P.kwargs) -> Run:
        return Run(client, client._wait(method(client._client, *args, **options)))

    signature = inspect.signature(method).replace(return_annotation="Run")
    blocking.__signature__ = signature  # type: ignore[attr-defined]  # for help() and IPython
    return blocking


def _rollouts_of_client(
    method: Callable[Concatenate[AsyncClient, _P], AsyncRollouts[_T]],
) -> Callable[Concatenate[Client, _P], Rollouts[_T]]:
    """Do the same for the method that returns ``AsyncRollouts``: the blocking method returns ``Rollouts``."""

    @functools.wraps(method)
    def blocking(client: Client, /, *args: _P.args, **options: _P.kwargs) -> Rollouts[_T]:
        return Rollouts(client, method(client._client, *args, **options))

    return blocking


def _of_rollouts(
    method: Callable[Concatenate[AsyncRollouts[Any], _P], Coroutine[Any, Any, None]],
) -> Callable[Concatenate[Rollouts[Any], _P], None]:
    """Return the blocking method of ``Rollouts`` with the parameters and docstring of a method of ``AsyncRollouts``."""

    @functools.wraps(method)
    def blocking(rollouts: Rollouts[Any], /, *args: _P.args, **options: _P.kwargs) -> None:
        rollouts._client._wait(method(rollouts._rollouts, *args, **options))

    return blocking


def _of_run(method: Callable[[AsyncRun], Coroutine[Any, Any, _T]]) -> Callable[[Run], _T]:
    """Return the blocking method of ``Run`` with the type and docstring of a method of ``AsyncRun``."""

    @functools.wraps(method)
    def blocking(run: Run, /) -> _T:
        return run._client._wait(method(run._run))

    return blocking


class Client(AbstractContextManager["Client"]):
    """Runs sweeps in a cluster. Use it as a context manager:

        with Client() as client:
            for rollout in client.submit(["tasks/hello"], agents=["oracle"], attempts=8):
                print(rollout.task, rollout.reward)

    Without a ``with`` block, as across the cells of a notebook, call close() at the end. The client connects at the start of the
    ``with`` block, or at the first call. After the block, or close(), it cannot be used again. Its methods are those of
    ``AsyncClient``, and block. Several threads may use one client. A separate thread renews the sweeps' leases, even while the
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

    submit = _run_of_client(AsyncClient.submit)
    get = _run_of_client(AsyncClient.get)
    file = _of_client(AsyncClient.file)
    fetch = _of_client(AsyncClient.fetch)
    samples = _of_client(AsyncClient.samples)
    rollouts = _rollouts_of_client(AsyncClient.rollouts)

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
        return _iterate(self._client, self._run.__aiter__())

    status = _of_run(AsyncRun.status)
    results = _of_run(AsyncRun.results)
    stop = _of_run(AsyncRun.stop)
    delete = _of_run(AsyncRun.delete)


class Rollouts(Generic[_T]):
    """Groups of rollouts. ``for group in rollouts`` yields the groups as they finish, and stops active ones when it ends."""

    def __init__(self, client: Client, rollouts: AsyncRollouts[_T]) -> None:
        self._client, self._rollouts = client, rollouts

    def __iter__(self) -> Iterator[Group[_T]]:
        return _iterate(self._client, self._rollouts.__aiter__())

    @property
    def active(self) -> Sequence[ActiveGroup[_T]]:
        """Return the groups that were submitted and not yet taken, in the order of their submission."""
        return self._rollouts.active

    @property
    def dropped(self) -> int:
        """Return the number of groups that ``max_staleness`` dropped."""
        return self._rollouts.dropped

    cancel = _of_rollouts(AsyncRollouts.cancel)
    pause = _of_rollouts(AsyncRollouts.pause)
    resume = _of_rollouts(AsyncRollouts.resume)
    set_version = _of_rollouts(AsyncRollouts.set_version)


def _iterate(client: Client, found: AsyncGenerator[_T, None]) -> Iterator[_T]:
    """Yield the items of an asynchronous generator, and close it at the end of the loop."""
    try:
        while (each := client._wait(_next(found))) is not None:
            yield each
    finally:
        client._wait(found.aclose())


async def _next(found: AsyncGenerator[_T, None]) -> _T | None:
    return await anext(found, None)
