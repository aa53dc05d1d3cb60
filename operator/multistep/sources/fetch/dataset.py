"""Fetches the list of a dataset's tasks, each pinned to a commit, and as many of the tasks as one fetch allows.

Requests to several repositories run in parallel, and each commit is fetched once for all of its tasks. Invalid tasks, and tasks
beyond the limits of size or time, are skipped. When a trial needs a skipped task, the operator fetches the task or reports its
error.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from dulwich.repo import Repo

from multistep.api.task.allowed_names import has_credentials
from multistep.api.trial.values import DIGEST, TOO_LARGE
from multistep.errors import SourceError
from multistep.sources.fetch import git
from multistep.sources.fetch.fetch_messages import (
    COMMIT,
    FetchedTask,
    FetchOrder,
    FetchRequest,
    FetchResult,
    FetchRules,
    progress_file,
)
from multistep.sources.fetch.http_client import check_allowed_host, host_of, matches_host, read_body
from multistep.sources.fetch.output_file import OutputFile, SizeBudget, write_tar
from multistep.sources.fetch.url import response_to
from multistep.sources.task.bundle import digest_of
from multistep.sources.task.harbor_registry import (
    REGISTRY_BYTES,
    DatasetTask,
    Selection,
    distinct_names,
    find_dataset,
    parse_registry,
    select_tasks,
)

MAX_TASKS: Final = 10_000
_AT_ONCE = 4  # maximum number of parallel fetches
_FIRST_BATCH = 16  # tasks in the first batch. Each batch is twice as large as the one before, because each keeps files open
_NAME_CHARACTERS = 240  # less than the limit of 253, because distinct_names appends a number to a repeated name
_URL_CHARACTERS = 2048
_PATH_CHARACTERS = 4096

T = TypeVar("T")
R = TypeVar("R")


def fetch(order: FetchOrder, incoming: Path) -> FetchResult:
    """Fetch the list of the selected tasks, and as many of the tasks as the limits allow. Raises SourceError."""
    request, rules = order.request, order.rules
    tasks_fetch = _DatasetFetch(order, incoming)
    what = request.location.partition("?")[0]
    data = registry(request, rules)
    digest = digest_of(data)
    if request.revision and request.revision != digest:
        raise SourceError(f"{what} has digest {digest}, but had {request.revision} when the sweep started", reason=DIGEST)
    selection = Selection(**request.dataset)
    tasks = select_tasks(find_dataset(parse_registry(data, what), selection, what), selection, what)
    _check(tasks, rules, what)
    pinned = pin([request.elsewhere(task.url or "", task.path, ref=task.ref) for task in tasks], rules)
    fetched = tasks_fetch.fetch(pinned)
    return FetchResult(
        digest, "", tasks=tuple(map(_task, distinct_names(tasks), pinned, (fetched.get(request.id) for request in pinned)))
    )


def registry(request: FetchRequest, rules: FetchRules) -> bytes:
    """Fetch a registry.json, and return its bytes. Raises SourceError."""
    return read_body(response_to(request, rules), request.location.partition("?")[0], REGISTRY_BYTES)


def pin(requests: Sequence[FetchRequest], rules: FetchRules) -> list[FetchRequest]:
    """Return the requests with the commits to which their branches and tags point. Each is resolved once. Raises SourceError."""
    requested = {(request.location, request.ref): request for request in requests}
    commits = dict(zip(requested, _parallel(partial(_commit, rules), requested.values()), strict=True))
    return [replace(request, ref="", revision=commits[request.location, request.ref]) for request in requests]


def _commit(rules: FetchRules, request: FetchRequest) -> str:
    with closing(_remote(request, rules)) as remote:
        commit = remote.resolve(request.ref)
    if not COMMIT.fullmatch(commit):
        raise SourceError(f"{request.location}: the server reports {commit[:80]!r}, which is not a commit")
    return commit


def check_task(task: DatasetTask, what: str) -> None:
    """Raise SourceError if a task's repository or name is not supported."""
    url, where = task.url or "", f"{what}: task {task.name[:_NAME_CHARACTERS]!r}"
    if not url.startswith(("https://", "http://")) or has_credentials(url) or not url.isprintable() or len(url) > _URL_CHARACTERS:
        text = f"git_url must be https:// or http://, without a user or password; got {url.rpartition('@')[2][:200]!r}"
        raise SourceError(f"{where}: {text}")
    if "\0" in task.path or len(task.path) > _PATH_CHARACTERS:
        raise SourceError(f"{where}: path must have at most {_PATH_CHARACTERS} characters, and no NUL")
    if not task.name.isprintable() or len(task.name) > _NAME_CHARACTERS:
        raise SourceError(f"{where}: the directory cannot name a task: at most {_NAME_CHARACTERS} printable characters can")


def _check(tasks: Sequence[DatasetTask], rules: FetchRules, what: str) -> None:
    """Raise SourceError if too many tasks are selected, or if the operator cannot or must not fetch one of them."""
    if len(tasks) > MAX_TASKS:
        text = f"{what}: {len(tasks)} tasks are selected, more than the limit of {MAX_TASKS}: use include, exclude or limit"
        raise SourceError(text, reason=TOO_LARGE)
    for task in tasks:
        if task.url is None:
            text = f"task {task.name!r} is the local path {task.path!r}, which only the machine that has it can read"
            raise SourceError(f"{what}: {text}: run `multistep sweep run --dataset` there, or exclude the task")
        check_task(task, what)
        check_allowed_host(host_of(task.url), rules.allowed_hosts)


class _LimitReached(SourceError):
    """A limit of size or time is reached, so this process fetches no further tasks."""


class _DatasetFetch(git.DownloadBudget):
    """Fetches the listed tasks. It limits the bytes of downloads and bundles, and the time, in order to end before the timeout."""

    def __init__(self, order: FetchOrder, incoming: Path) -> None:
        super().__init__()
        self._order = order
        self._incoming = incoming
        self._until = time.monotonic() + order.rules.seconds / 2
        self._limits = order.rules.limits
        self._written = SizeBudget(self._limits, "the dataset")
        self._found: dict[str, FetchResult] = {}
        self._wanted = 0

    def count(self, size: int, url: str) -> None:
        """Count downloaded bytes. Raises _LimitReached if a limit of size or time is reached."""
        try:
            super().count(size, url)
        except SourceError as error:
            raise _LimitReached(str(error)) from error
        if time.monotonic() > self._until:
            raise _LimitReached("the rest of the dataset is fetched when trials need it")

    def fetch(self, wanted: Iterable[FetchRequest]) -> dict[str, FetchResult]:
        """Fetch the tasks that are not in the cache, and return the new files by the requests' ids. Raises SourceError."""
        groups: dict[tuple[str, str], list[FetchRequest]] = defaultdict(list)
        cached = {file.name.rpartition("-")[0] for file in Path(self._order.cache).iterdir()}
        for request in {request.id: request for request in wanted}.values():
            if request.key(request.revision) not in cached:
                groups[request.location, request.revision].append(request)
        self._wanted = sum(map(len, groups.values()))
        _parallel(self._fetch_group, groups.values())
        return self._found

    def _fetch_group(self, group: Sequence[FetchRequest]) -> None:
        """Fetch the tasks of one repository and commit. Raises SourceError if the commit cannot be fetched."""
        first = group[0]
        with (
            suppress(_LimitReached),
            closing(_remote(first, self._order.rules, self)) as remote,
            git.temporary_repository(self._incoming) as repository,
        ):
            self.count(0, first.location)
            remote.fetch(repository, first.revision)
            start, size = 0, _FIRST_BATCH
            while batch := group[start : start + size]:
                self._fetch_batch(remote, repository, batch)
                start, size = start + size, size * 2

    def _fetch_batch(self, remote: git.GitRemote, repository: Repo, batch: Sequence[FetchRequest]) -> None:
        """Fetch some tasks of a commit. Invalid tasks are skipped, because the trials that need them report the error."""
        valid = [_Task(request, SizeBudget(self._limits, f"the task in {request.location}")) for request in batch]
        valid = [task for task in valid if task.list_files(repository)]
        try:
            remote.fetch_files(repository, *(task.files for task in valid))
        except _LimitReached:
            raise
        except SourceError:
            return
        for task in valid:
            if (fetched := task.written(repository, self._incoming)) is not None:
                self._found[task.request.id] = fetched
                self._count_written((self._incoming / fetched.file).stat().st_size)
        progress_file(self._incoming, self._order.request).write_text(f"{len(self._found)} of {self._wanted}")

    def _count_written(self, size: int) -> None:
        try:
            self._written.add(size)
        except SourceError as error:
            raise _LimitReached(str(error)) from error


@dataclass
class _Task:
    """A task in a repository whose commit was fetched."""

    request: FetchRequest
    budget: SizeBudget
    files: git.Files = field(default_factory=dict)

    def list_files(self, repository: Repo) -> bool:
        """Set ``files`` to the task's files. Return False if they cannot be listed, or if task.toml is missing."""
        where = self.request
        try:
            self.files = git.files_at(repository, where.revision, where.path, self.budget, where.location)
        except SourceError:
            return False
        return "task.toml" in self.files

    def written(self, repository: Repo, incoming: Path) -> FetchResult | None:
        """Write the task's bundle, and return it. Return None if a file of the task is too large or of an unsupported type."""
        try:
            with OutputFile(incoming) as output:
                write_tar(output, git.file_entries(repository, self.files, self.budget, self.request.location))
        except SourceError:
            return None
        return FetchResult(self.request.revision, output.digest, output.path.name)


def _remote(request: FetchRequest, rules: FetchRules, budget: git.DownloadBudget | None = None) -> git.GitRemote:
    insecure = matches_host(host_of(request.location), rules.insecure_hosts)
    return git.GitRemote(request.location, request.credentials, insecure=insecure, budget=budget)


def _task(name: str, request: FetchRequest, fetched: FetchResult | None) -> FetchedTask:
    digest, file = (fetched.digest, fetched.file) if fetched else ("", "")
    return FetchedTask(name, digest, file, request.location, request.revision, request.path)


def _parallel(work: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """Call ``work`` for the items in parallel, and return the results in order. After all calls have ended, raise the first error,
    if any."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return [future.result() for future in [pool.submit(work, item) for item in items]]
