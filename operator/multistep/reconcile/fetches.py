"""Fetches of tasks: in the background, with a concurrency limit, each request once, retried with back-off.

A trial's task is decided by its status, not here. The state in memory only saves work.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from multistep.api.model import Metadata
from multistep.errors import SourceError
from multistep.reconcile.bounds import Bound, Wake
from multistep.reconcile.turns import Key
from multistep.settings import Settings
from multistep.sources import child
from multistep.sources.cache import Cache
from multistep.sources.fetch.request import Fetched, Request, Rules
from multistep.sources.reasons import DENIED, FETCHING

logger = logging.getLogger(__name__)

Outcome = Fetched | SourceError
Run = Callable[[Request, Rules, Path], Awaitable[Fetched]]

FIRST_PAUSE_SECONDS = 5.0
LAST_PAUSE_SECONDS = 300.0
_REMEMBERED = 4096
_SWEEP = "sweep/"  # prefix of sweeps' keys; no object's name has a slash


@dataclass
class _Fetch:
    """A running fetch. starter: whose slot it holds; waiting: keys to requeue at its end, by UID."""

    starter: Key
    task: asyncio.Task[None]
    waiting: dict[str, Key] = field(default_factory=dict)


@dataclass(frozen=True)
class _Failure:
    """A failed fetch. error: of the last try; until: time of the event loop; pause: seconds."""

    error: SourceError
    until: float
    pause: float


class Fetches:
    """Fetches of trials and sweeps, with one concurrency limit. run: fetches one; wake: requeues a trial.

    One namespace never has all slots, so that its slow downloads do not stop the others.
    """

    def __init__(self, settings: Settings, wake: Wake, run: Run = child.fetch) -> None:
        self._settings = settings
        self._rules = rules_of(settings)
        self._run = run
        self._wake = wake
        self._wake_sweep: Wake = lambda _: None
        self._bound = Bound(settings.task_fetches, self._requeue, most_each=settings.task_fetches - 1)
        self._running: dict[str, _Fetch] = {}
        self._outcomes: OrderedDict[str, tuple[str, Outcome]] = OrderedDict()  # by the trial's UID: request id and outcome
        self._failures: OrderedDict[str, _Failure] = OrderedDict()  # by the request's id
        self._cache: Cache | None = None

    @property
    def cache(self) -> Cache:
        """The cache, opened at its first use. Raises SourceError if it cannot be opened."""
        if self._cache is None:
            cache = Cache(self._settings.task_cache_dir, self._settings.task_cache_bytes)
            try:
                cache.open()
            except OSError as error:
                text = f"the operator's cache for tasks, {cache.directory}, cannot be used: {error.strerror or error}"
                raise SourceError(text, transient=True) from error
            self._cache = cache
        return self._cache

    def of_sweeps(self, wake: Wake) -> SweepFetches:
        """Return the fetches for sweeps. wake: requeues a sweep."""
        self._wake_sweep = wake
        return SweepFetches(self)

    def ask(self, asker: Metadata, request: Request, *, started: bool) -> Fetched:
        """Return a trial's fetched task. Raises SourceError while the fetch runs, and if it failed."""
        return self.ask_for((asker.namespace, asker.name), asker.uid, request, started=started)

    def ask_for(self, key: Key, uid: str, request: Request, *, started: bool) -> Fetched:
        """As ask, for a trial or sweep. key: of the concurrency limit."""
        about, outcome = self._outcomes.pop(uid, (None, None))
        if about == request.id and isinstance(outcome, Fetched):
            return outcome
        if about == request.id and isinstance(outcome, SourceError):
            raise _tolerated(outcome) if started else outcome
        self._join_or_start(uid, key, request)
        text = f"the task is being fetched from {request.location.partition('?')[0]}"
        raise SourceError(text, transient=True, reason=FETCHING, retry_seconds=None)

    def settle(self, key: Key) -> None:
        """Release an unused slot at the end of a reconcile."""
        if not any(running.starter == key for running in self._running.values()):
            self._bound.free(key)

    async def stop(self) -> None:
        """Cancel all running fetches."""
        tasks = [running.task for running in self._running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _join_or_start(self, uid: str, key: Key, request: Request) -> None:
        """Join a running fetch of the request, or start one if a slot is free. Raises SourceError during the back-off."""
        if (running := self._running.get(request.id)) is not None:
            running.waiting[uid] = key
            return
        failed = self._failures.get(request.id)
        if failed is not None and (left := failed.until - _now()) > 0:
            raise SourceError(str(failed.error), transient=True, reason=failed.error.reason, retry_seconds=left)
        if any(running.starter == key for running in self._running.values()) or not self._bound.ask(key):
            return
        task = asyncio.create_task(self._fetch(request), name=f"fetching for {key[0]}/{key[1]}")
        self._running[request.id] = _Fetch(key, task, {uid: key})

    async def _fetch(self, request: Request) -> None:
        outcome: Outcome = SourceError("the operator stopped while it fetched the task", transient=True)
        try:
            outcome = await self._run(request, self._rules, self.cache.directory)
            if outcome.file:
                self.cache.put(request.key(outcome.revision), outcome)
            for each in outcome.tasks:
                self.cache.put(request.below(each.name).key(outcome.revision), Fetched(outcome.revision, each.digest, each.file))
        except SourceError as error:
            outcome = error
        except OSError as error:
            outcome = SourceError(f"the task could not be stored in the operator's cache: {error.strerror}", transient=True)
        except Exception as error:
            logger.exception("fetching a task")
            outcome = SourceError(f"the task could not be fetched: {type(error).__name__}", transient=True)
        finally:
            self._finished(request.id, outcome)

    def _finished(self, request: str, outcome: Outcome) -> None:
        running = self._running.pop(request)
        former = self._failures.pop(request, None)
        if isinstance(outcome, SourceError) and outcome.transient:
            pause = min(LAST_PAUSE_SECONDS, former.pause * 2 if former else FIRST_PAUSE_SECONDS)
            self._failures[request] = _Failure(outcome, _now() + pause, pause)
            outcome = SourceError(str(outcome), transient=True, reason=outcome.reason, retry_seconds=pause)
        for uid in running.waiting:
            self._outcomes[uid] = request, outcome
        for remembered in (self._outcomes, self._failures):
            while len(remembered) > _REMEMBERED:
                remembered.popitem(last=False)
        self._bound.free(running.starter)
        for key in running.waiting.values():
            self._requeue(key)

    def _requeue(self, key: Key) -> None:
        if key[1].startswith(_SWEEP):
            self._wake_sweep((key[0], key[1].removeprefix(_SWEEP)))
        else:
            self._wake(key)


@dataclass(frozen=True)
class SweepFetches:
    """The fetches for sweeps."""

    fetches: Fetches

    @property
    def cache(self) -> Cache:
        """The cache of all fetches."""
        return self.fetches.cache

    def ask(self, asker: Metadata, request: Request, *, started: bool) -> Fetched:
        """Return a sweep's fetched tasks. Raises SourceError while the fetch runs, and if it failed."""
        return self.fetches.ask_for(_sweep((asker.namespace, asker.name)), asker.uid, request, started=started)

    def settle(self, key: Key) -> None:
        """Release an unused slot at the end of a sweep's reconcile."""
        self.fetches.settle(_sweep(key))


def _sweep(key: Key) -> Key:
    return key[0], f"{_SWEEP}{key[1]}"


def rules_of(settings: Settings) -> Rules:
    """Return the settings that fetch processes receive."""
    return Rules(
        allowed_hosts=tuple(settings.task_allowed_hosts),
        insecure_hosts=tuple(settings.task_insecure_hosts),
        blocked_networks=tuple(settings.task_blocked_networks),
        seconds=settings.task_fetch_seconds,
    )


def _tolerated(error: SourceError) -> SourceError:
    """Return the error as transient if a Secret was denied: an admin may fix it, and the running trial must not be lost."""
    if error.reason == DENIED:
        return SourceError(str(error), transient=True, reason=DENIED, retry_seconds=LAST_PAUSE_SECONDS)
    return error


def _now() -> float:
    return asyncio.get_running_loop().time()
