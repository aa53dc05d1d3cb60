"""Helpers that fetch tasks from real servers, and check the fetched task or the error."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from multistep.errors import SourceError
from multistep.sources.fetch.fetch_messages import FetchRequest, FetchResult, FetchRules
from multistep.sources.load.fetch_process import fetch_in_child
from multistep.sources.load.task_cache import TaskCache
from multistep.sources.task.bundle import Bundle


async def fetched(cache: TaskCache, request: FetchRequest, **rules: Any) -> tuple[FetchResult, Bundle]:
    """Fetch a task in the child process, put it into the cache, and read it back from there."""
    found = await fetch_in_child(request, FetchRules(**{"insecure_hosts": ("127.0.0.1:*",), **rules}), cache.directory)
    if found.file:
        cache.put(request.key(found.revision), found)
    kept = cache.find(request.key(found.revision))
    assert kept is not None
    return found, Bundle.from_archive(kept.path.read_bytes(), found.digest)


async def refused(cache: TaskCache, request: FetchRequest, **rules: Any) -> SourceError:
    with pytest.raises(SourceError) as caught:
        await fetched(cache, request, **rules)
    for secret in request.credentials.values():
        assert secret not in str(caught.value)
    assert list(cache.incoming.iterdir()) == [], "something was left behind"
    return caught.value


def same(bundle: Bundle, directory: Path) -> bool:
    return bundle.entries == Bundle.from_directory(directory).entries


class Repository:
    """A git working tree with the task in tasks/t, and a bare repository that a server serves."""

    def __init__(self, work: Path, bare: Path) -> None:
        self._work = work
        self._bare = bare
        self._git("init", "-q", "-b", "main")

    def commit(self, *names: str) -> str:
        """Commit and push all files; return the commit's hash. names: tags to create for the commit."""
        self._git("add", "-A")
        self._git("-c", "user.name=n", "-c", "user.email=e", "commit", "-q", "--allow-empty", "-m", "m")
        for name in names:
            self._git("-c", "user.name=n", "-c", "user.email=e", "tag", "-a", "-m", "t", name)
        self._git("push", "-q", "--force", "--tags", str(self._bare), "HEAD:refs/heads/main")
        return self._git("rev-parse", "HEAD").strip()

    def _git(self, *arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=self._work, check=True, capture_output=True, text=True).stdout
