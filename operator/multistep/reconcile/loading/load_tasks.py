"""Fetches and reads tasks in the background, with limits that are fair between namespaces."""

from __future__ import annotations

import asyncio
import logging
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from multistep.api.common.base_model import Metadata
from multistep.api.trial.values import DENIED, FETCHING
from multistep.errors import InvalidSpec, SourceError
from multistep.reconcile.admission.admission import admitted
from multistep.reconcile.admission.concurrency_limit import ConcurrencyLimit, Key, Wake
from multistep.reconcile.loading.background_jobs import RECHECK_SECONDS, BackgroundJobs, forget_oldest
from multistep.settings import Settings
from multistep.sources.fetch.fetch_messages import FetchedTask, FetchRequest, FetchResult, FetchRules, progress_file
from multistep.sources.load.fetch_process import fetch_in_child
from multistep.sources.load.task_cache import TaskCache
from multistep.sources.reader.fork_server import ReadFailed
from multistep.sources.reader.read_task import ReadTask

logger = logging.getLogger(__name__)

Run = Callable[[FetchRequest, FetchRules, Path], Awaitable[FetchResult]]

FIRST_PAUSE_SECONDS = 5.0
LAST_PAUSE_SECONDS = 300.0
PROGRESS_SECONDS = 5.0
_PROGRESS_BYTES = 32
_PROGRESS = re.compile(r"\d{1,6} of \d{1,6}")
_SWEEP = "sweep/"  # prefix of the names in keys of sweeps; names in keys of trials never contain a slash


@dataclass(frozen=True)
class _Failure:
    """A failed fetch."""

    error: SourceError
    """Error of the last try."""
    until: float
    """End of the back-off, in the event loop's time."""
    pause: float
    """Duration of the back-off in seconds."""


class Fetches:
    """The fetches for trials and sweeps, with one concurrency limit.

    If the limit is more than one, a single namespace never gets all slots, so that its slow downloads do not block other
    namespaces.
    """

    def __init__(self, settings: Settings, wake: Wake, run: Run = fetch_in_child) -> None:
        """Create the fetches. ``wake`` requeues a trial. ``run`` performs one fetch."""
        self._settings = settings
        self._rules = rules_of(settings)
        self._run = run
        self._wake = wake
        self._wake_sweep: Wake = lambda _: None
        self._jobs: BackgroundJobs[str, FetchResult] = BackgroundJobs(settings.task_fetches, self._requeue)
        self._failures: OrderedDict[str, _Failure] = OrderedDict()  # newest failures, by id of the request
        self._cache: TaskCache | None = None

    @property
    def cache(self) -> TaskCache:
        """The cache of fetched tasks, opened at its first use. Raises SourceError if it cannot be opened."""
        if self._cache is None:
            cache = TaskCache(self._settings.task_cache_dir, self._settings.task_cache_bytes)
            try:
                cache.open()
            except OSError as error:
                text = f"the operator's cache for tasks, {cache.directory}, cannot be used: {error.strerror or error}"
                raise SourceError(text, transient=True) from error
            self._cache = cache
        return self._cache

    def of_sweeps(self, wake: Wake) -> SweepFetches:
        """Return the fetches for sweeps. ``wake`` requeues a sweep."""
        self._wake_sweep = wake
        return SweepFetches(self)

    def ask(self, asker: Metadata, request: FetchRequest, *, started: bool) -> FetchResult:
        """Return a trial's fetched task. Raises SourceError while the fetch runs, and if it failed.

        ``started`` means that the trial has started. If access to the task is denied, a started trial waits instead of failing.
        """
        return self.ask_for((asker.namespace, asker.name), asker.uid, request, started=started)

    def ask_for(self, key: Key, uid: str, request: FetchRequest, *, started: bool) -> FetchResult:
        """Do what ``ask`` does, for a trial or a sweep. ``key`` is its key in the concurrency limit."""
        try:
            outcome = self._jobs.outcome(uid, request.id)
        except SourceError as error:
            raise (_tolerated(error) if started else error) from None
        if outcome is not None:
            return outcome
        self._join_or_start(uid, key, request)
        raise self._running(request)

    def _running(self, request: FetchRequest) -> SourceError:
        """Return the error that reports a running fetch. For a dataset it contains the progress, and requests a retry soon."""
        if request.kind != "dataset":
            text = f"the task is being fetched from {request.location.partition('?')[0]}"
            return SourceError(text, transient=True, reason=FETCHING, retry_seconds=RECHECK_SECONDS)
        try:
            with progress_file(self.cache.incoming, request).open("rb") as file:
                done = file.read(_PROGRESS_BYTES)
        except OSError:
            done = b""
        found = _PROGRESS.fullmatch(done.decode(errors="replace"))
        text = f"the tasks of dataset {request.dataset['name']} are being fetched: {found.group() if found else 'listing them'}"
        return SourceError(text, transient=True, reason=FETCHING, retry_seconds=PROGRESS_SECONDS)

    @property
    def limit(self) -> ConcurrencyLimit:
        """The limit of concurrent fetches."""
        return self._jobs.limit

    async def stop(self) -> None:
        """Cancel all running fetches."""
        await self._jobs.stop()

    def _join_or_start(self, uid: str, key: Key, request: FetchRequest) -> None:
        """Join a running fetch of the request, or start one if a slot is free. Raises SourceError during the back-off."""
        failed = self._failures.get(request.id)
        if request.id not in self._jobs and failed is not None and (left := failed.until - _now()) > 0:
            raise SourceError(str(failed.error), transient=True, reason=failed.error.reason, retry_seconds=left)
        if (job := self._jobs.start(request.id, key, uid, lambda: self._fetch(request))) is not None:
            job.waiting[uid] = key

    async def _fetch(self, request: FetchRequest) -> FetchResult:
        try:
            fetched = await self._fetch_into_cache(request)
        except SourceError as error:
            raise self._failed(request.id, error) from error
        except OSError as error:
            text = f"the task could not be stored in the operator's cache: {_cause(error)}"
            raise self._failed(request.id, SourceError(text, transient=True)) from error
        except Exception as error:
            logger.exception("fetching a task")
            text = f"the task could not be fetched: {type(error).__name__}"
            raise self._failed(request.id, SourceError(text, transient=True)) from error
        self._failures.pop(request.id, None)
        return fetched

    async def _fetch_into_cache(self, request: FetchRequest) -> FetchResult:
        directory = self.cache.directory
        try:
            fetched = await self._run(request, self._rules, directory)
        except OSError as error:
            text = f"the process that fetches the task could not be started or read: {_cause(error)}"
            raise SourceError(text, transient=True) from error
        if fetched.file:
            self.cache.put(request.key(fetched.revision), fetched)
        for each in fetched.tasks:
            if each.file:
                self.cache.put(_key(request, each, fetched.revision), FetchResult(fetched.revision, each.digest, each.file))
        return fetched

    def _failed(self, request: str, error: SourceError) -> SourceError:
        """Return the error. If it is transient, start the next back-off of the request."""
        former = self._failures.pop(request, None)
        if not error.transient:
            return error
        pause = min(LAST_PAUSE_SECONDS, former.pause * 2 if former else FIRST_PAUSE_SECONDS)
        self._failures[request] = _Failure(error, _now() + pause, pause)
        forget_oldest(self._failures)
        return SourceError(str(error), transient=True, reason=error.reason, retry_seconds=pause)

    def _requeue(self, key: Key) -> None:
        if key[1].startswith(_SWEEP):
            self._wake_sweep((key[0], key[1].removeprefix(_SWEEP)))
        else:
            self._wake(key)


@dataclass(frozen=True)
class SweepFetches:
    """The fetches for sweeps, which use the same concurrency limit as those for trials."""

    fetches: Fetches

    @property
    def cache(self) -> TaskCache:
        """The cache of fetched tasks, for trials and sweeps."""
        return self.fetches.cache

    def ask(self, asker: Metadata, request: FetchRequest, *, started: bool) -> FetchResult:
        """Return a sweep's fetched tasks. Raises SourceError while the fetch runs, and if it failed."""
        return self.fetches.ask_for(_sweep((asker.namespace, asker.name)), asker.uid, request, started=started)

    def reconcile(self, key: Key) -> AbstractAsyncContextManager[None]:
        """Return the context manager in which one reconcile of a sweep runs. It releases the sweep's slots at the end."""
        return admitted([self.fetches.limit], _sweep(key))


def _sweep(key: Key) -> Key:
    return key[0], f"{_SWEEP}{key[1]}"


def rules_of(settings: Settings) -> FetchRules:
    """Return the settings that fetch processes receive."""
    return FetchRules(
        allowed_hosts=tuple(settings.task_allowed_hosts),
        insecure_hosts=tuple(settings.task_insecure_hosts),
        blocked_networks=tuple(settings.task_blocked_networks),
        seconds=settings.task_fetch_seconds,
    )


def _key(request: FetchRequest, task: FetchedTask, revision: str) -> str:
    """Return the cache key of one task of a request for many tasks."""
    return request.elsewhere(task.url, task.path).key(task.revision) if task.url else request.below(task.name).key(revision)


def _tolerated(error: SourceError) -> SourceError:
    """Return the error for a started trial or sweep. If access was denied, it is transient, to wait for valid credentials."""
    if error.reason == DENIED:
        return SourceError(str(error), transient=True, reason=DENIED, retry_seconds=LAST_PAUSE_SECONDS)
    return error


def _cause(error: OSError) -> str:
    """Return why a system call failed. Error numbers of the event loop itself have no text ("Unknown error -1")."""
    known = error.strerror and error.errno is not None and error.errno > 0
    return str(error.strerror) if known else f"{type(error).__name__} {error}".strip()


def _now() -> float:
    return asyncio.get_running_loop().time()


AT_ONCE: Final = 2  # maximum number of concurrent reads, each in a process of at most 256 MiB; a namespace has at most one
PATIENCE_SECONDS: Final = 0.25
TRIES: Final = 3
MAX_SECONDS: Final = 300.0  # timeout of a read with its ConfigMaps; the child process that reads has a shorter timeout

TaskKey = tuple[str, ...]


class Reads:
    """The reads of tasks, with one concurrency limit."""

    def __init__(self, wake: Wake, *, patience_seconds: float = PATIENCE_SECONDS) -> None:
        """Create the reads. ``wake`` requeues a trial. A reconcile waits ``patience_seconds`` for its read before it is
        requeued."""
        self.patience_seconds = patience_seconds
        self._jobs: BackgroundJobs[TaskKey, ReadTask] = BackgroundJobs(AT_ONCE, wake, results=False)  # TrialLoader caches results
        self._deaths: OrderedDict[TaskKey, int] = OrderedDict()

    async def get(
        self, asker: Metadata, task: TaskKey, read: Callable[[], Awaitable[ReadTask]], *, started: bool = False
    ) -> ReadTask:
        """Return the task that ``read`` reads. Raises the errors of ``read``, and SourceError while the read runs or is queued.

        ``started`` means that the trial has started, so its task was already read once. If the process that reads the task dies
        now, the operator or its node is short of memory. The trial then waits, however often this happens.
        """
        try:
            return await self._get(asker, task, read)
        except ReadFailed as error:
            deaths = self._deaths.get(task, 0)
            if started or deaths < TRIES:
                raise
            raise InvalidSpec(f"spec.task: {error}, {deaths} times in a row") from None

    async def _get(self, asker: Metadata, task: TaskKey, read: Callable[[], Awaitable[ReadTask]]) -> ReadTask:
        self._jobs.outcome(asker.uid, task)
        key = asker.namespace, asker.name
        if (job := self._jobs.start(task, key, asker.uid, partial(self._run, task, read))) is None:
            raise _not_yet()
        await asyncio.wait([job.task], timeout=self.patience_seconds)
        if job.task.done():
            return job.task.result()
        job.waiting[asker.uid] = key
        raise _not_yet()

    @property
    def limit(self) -> ConcurrencyLimit:
        """The limit of concurrent reads."""
        return self._jobs.limit

    async def stop(self) -> None:
        """Cancel all running reads."""
        await self._jobs.stop()

    async def _run(self, task: TaskKey, read: Callable[[], Awaitable[ReadTask]]) -> ReadTask:
        try:
            async with asyncio.timeout(MAX_SECONDS):
                found = await read()
        except TimeoutError:
            raise SourceError(f"reading the task took more than {MAX_SECONDS:g} s", transient=True) from None
        except ReadFailed:
            self._deaths[task] = self._deaths.pop(task, 0) + 1
            forget_oldest(self._deaths)
            raise
        self._deaths.pop(task, None)
        return found


def _not_yet() -> SourceError:
    text = "the task is being read or is queued for reading"
    return SourceError(text, transient=True, reason=FETCHING, retry_seconds=RECHECK_SECONDS)
