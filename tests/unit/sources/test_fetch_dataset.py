"""Fetch datasets from real servers, in the child process that the operator uses."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from multistep.errors import SourceError
from multistep.sources.fetch.fetch_messages import FetchRequest, FetchResult, FetchRules
from multistep.sources.load.fetch_process import fetch_in_child
from multistep.sources.load.task_cache import TaskCache
from multistep.sources.task.bundle import Bundle, digest_of
from tests.support import git_server, servers
from tests.unit.sources import fetch_cases
from tests.unit.sources.fetch_cases import Repository

BASIC = {"username": git_server.USER, "password": git_server.PASSWORD}


class RegistryServer:
    """A server with a registry.json and the repositories ``one`` and ``two``, each with the tasks ``a`` and ``b``."""

    def __init__(self, server: servers.Server, top: Path) -> None:
        self.server = server
        self.work = {name: top / name for name in ("one", "two")}
        self.commits: dict[str, str] = {}
        self.rows: list[dict[str, Any]] = []
        for name, work in self.work.items():
            work.mkdir()
            subprocess.run(["git", "init", "-q", "--bare", "-b", "main", str(self.bare(name))], check=True)
            for task in ("a", "b"):
                self.write(name, task)
            self.commit(name)

    def bare(self, name: str) -> Path:
        return self.server.directory / f"{name}.git"

    def write(self, name: str, task: str, size: int = 10) -> Path:
        directory = self.work[name] / "tasks" / task
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "task.toml").write_text(f"# {name} {task}\n")
        (directory / "data").write_text(f"{name}{task}" * size)
        return directory

    def commit(self, name: str) -> str:
        self.commits[name] = Repository(self.work[name], self.bare(name)).commit()
        return self.commits[name]

    def sparse(self, name: str, value: str = "true") -> None:
        """Set whether the server supports partial clones (object filters) of this repository."""
        subprocess.run(["git", "-C", str(self.bare(name)), "config", "uploadpack.allowFilter", value], check=True)

    def delete_object(self, name: str, path: str) -> None:
        """Delete a file's object in the bare repository."""
        command = ["git", "-C", str(self.bare(name)), "rev-parse", f"{self.commits[name]}:{path}"]
        sha = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
        (self.bare(name) / "objects" / sha[:2] / sha[2:]).unlink()

    def url(self, name: str, area: str = "git") -> str:
        return f"{self.server.url}/{area}/{name}.git"

    def add(self, name: str, task: str, commit: str | None = None, area: str = "git") -> None:
        row = {"name": task, "git_url": self.url(name, area), "path": f"tasks/{task}", "git_commit_id": commit}
        self.rows.append(row)

    def request(self, area: str = "files", **fields: Any) -> FetchRequest:
        """Write the registry.json, and return a request for its dataset."""
        data = json.dumps([{"name": "bench", "version": "1", "description": "", "tasks": self.rows}])
        (self.server.directory / "registry.json").write_text(data)
        selection = {"name": "bench", **fields.pop("dataset", {})}
        return FetchRequest("dataset", f"{self.server.url}/{area}/registry.json", dataset=selection, **fields)

    def posts(self) -> int:
        """Return the number of POST requests so far: git sends one for references, and one for each fetch of objects."""
        return self.server.log.read_text().count("POST")


@pytest.fixture
def registry(git: servers.Server, tmp_path: Path) -> RegistryServer:
    return RegistryServer(git, tmp_path)


async def fetch(cache: TaskCache, request: FetchRequest, **rules: Any) -> FetchResult:
    """Fetch a dataset as the operator does, and put its tasks into the cache."""
    found = await fetch_in_child(request, FetchRules(insecure_hosts=("127.0.0.1:*",), **rules), cache.directory)
    for each in found.tasks:
        if each.file:
            key = request.elsewhere(each.url, each.path).key(each.revision)
            cache.put(key, FetchResult(each.revision, each.digest, each.file))
    assert list(cache.incoming.iterdir()) == [], "something was left behind"
    return found


async def refused(cache: TaskCache, request: FetchRequest, **rules: Any) -> SourceError:
    with pytest.raises(SourceError) as caught:
        await fetch(cache, request, **rules)
    assert list(cache.incoming.iterdir()) == [], "something was left behind"
    return caught.value


def content(cache: TaskCache, request: FetchRequest, found: FetchResult, name: str) -> bytes:
    (task,) = [each for each in found.tasks if each.name == name]
    kept = cache.find(request.elsewhere(task.url, task.path).key(task.revision))
    assert kept is not None, f"{name} was not fetched"
    return bytes(Bundle.from_archive(kept.path.read_bytes(), kept.digest).entries["data"].data)


async def test_each_task_is_pinned_to_a_commit_and_its_files_are_those_of_the_commit(
    registry: RegistryServer, cache: TaskCache
) -> None:
    old = registry.commits["one"]
    registry.write("one", "a", 20)
    new = registry.commit("one")
    for name, task, commit in (("one", "a", old), ("two", "a", None), ("one", "b", "main"), ("one", "a", None)):
        registry.add(name, task, commit)
    request = registry.request()
    found = await fetch(cache, request)
    assert [(each.name, each.url, each.revision, each.path) for each in found.tasks] == [
        ("a", registry.url("one"), old, "tasks/a"),
        ("a-2", registry.url("two"), registry.commits["two"], "tasks/a"),
        ("b", registry.url("one"), new, "tasks/b"),
        ("a-3", registry.url("one"), new, "tasks/a"),
    ]
    assert found.revision == digest_of((registry.server.directory / "registry.json").read_bytes())
    files = {name: content(cache, request, found, name) for name in ("a", "a-2", "b", "a-3")}
    assert files == {"a": b"onea" * 10, "a-2": b"twoa" * 10, "b": b"oneb" * 10, "a-3": b"onea" * 20}


async def test_a_commit_is_fetched_once_for_all_of_its_tasks(registry: RegistryServer, cache: TaskCache) -> None:
    """Regression: each batch of 16 tasks kept files open, so 500 tasks exceeded the limit of open files."""
    registry.sparse("one")
    for number in range(700):
        registry.write("one", f"t{number}")
    commit = registry.commit("one")
    for number in range(700):
        registry.add("one", f"t{number}", commit)
    request = registry.request()
    found = await fetch(cache, request)
    assert all(each.file for each in found.tasks) and content(cache, request, found, "t699") == b"onet699" * 10
    assert registry.posts() == 2 * (1 + 6), "each time references and objects: directories, then files of 16, 32, ... tasks"
    asked = registry.posts()
    again = await fetch(cache, request)
    assert registry.posts() == asked and not any(each.file for each in again.tasks), "all is in the cache"
    assert [each.entry for each in again.tasks] == [each.entry for each in found.tasks]


async def test_files_of_other_directories_are_not_needed(registry: RegistryServer, cache: TaskCache) -> None:
    """The repository has lost a file of another directory, so the server cannot send that file."""
    registry.sparse("one")
    (registry.work["one"] / "elsewhere").write_text("lost")
    registry.add("one", "a", registry.commit("one"))
    registry.delete_object("one", "elsewhere")
    found = await fetch(cache, registry.request())
    assert content(cache, registry.request(), found, "a") == b"onea" * 10
    _, alone = await fetch_cases.fetched(
        cache, FetchRequest("git", registry.url("one"), path="tasks/b", revision=registry.commits["one"])
    )
    assert alone.entries["data"].data == b"oneb" * 10
    registry.sparse("one", "false")
    cache.drop(FetchRequest("git", registry.url("one"), path="tasks/a").key(registry.commits["one"]))
    assert (await refused(cache, registry.request())).transient, "without partial clones the file is needed"


async def test_tasks_that_are_wrong_or_too_large_are_left_to_their_trials(registry: RegistryServer, cache: TaskCache) -> None:
    (registry.write("one", "b") / "task.toml").unlink()
    registry.write("one", "large", 100_000)
    commit = registry.commit("one")
    for task in ("none", "b", "large", "a"):
        registry.add("one", task, commit)
    found = await fetch(cache, registry.request(), uncompressed_bytes=200_000)
    assert {each.name: bool(each.file) for each in found.tasks} == {"none": False, "b": False, "large": False, "a": True}


async def test_what_is_beyond_the_room_or_the_time_is_left_to_the_trials(registry: RegistryServer, cache: TaskCache) -> None:
    for number in range(20):
        registry.write("one", f"t{number}", 2000)
    commit = registry.commit("one")
    for number in range(20):
        registry.add("one", f"t{number}", commit)
    found = await fetch(cache, registry.request(), uncompressed_bytes=50_000)
    assert 0 < sum(bool(each.file) for each in found.tasks) < 10
    assert {each.revision for each in found.tasks} == {commit}


async def test_a_registry_that_changed_since_the_sweep_started_is_refused(registry: RegistryServer, cache: TaskCache) -> None:
    registry.add("one", "a")
    first = await fetch(cache, registry.request())
    assert (await fetch(cache, registry.request(revision=first.revision))).tasks[0].revision == registry.commits["one"]
    registry.add("one", "b")
    assert (await refused(cache, registry.request(revision=first.revision))).reason == "TaskDigestMismatch"


async def test_only_the_registrys_own_server_gets_the_credentials(registry: RegistryServer, cache: TaskCache) -> None:
    registry.add("one", "a", area="private")
    found = await fetch(cache, registry.request("private-files", scope="uid", credentials=BASIC))
    assert found.tasks[0].revision == registry.commits["one"]
    async with servers.git() as other:
        shutil.copytree(registry.bare("one"), other.directory / "one.git")
        registry.rows[0]["git_url"] = f"{other.url}/private/one.git"
        error = await refused(cache, registry.request("private-files", scope="uid", credentials=BASIC))
        assert error.reason == "TaskAccessDenied" and "authorization: True" not in other.log.read_text()


@pytest.mark.parametrize(
    ("row", "rules", "reason", "message"),
    [
        ({"git_url": None, "path": "here/t"}, {}, "InvalidSpec", "task 't' is the local path 'here/t'"),
        ({"git_url": "git@git.example:r.git"}, {}, "InvalidSpec", "task 'a': git_url must be https:// or http://"),
        ({"git_url": "https://me:key@git.example/r.git"}, {}, "InvalidSpec", "without a user or password; got 'git.example/r.git'"),
        ({"git_url": f"https://git.example/{'r' * 2048}"}, {}, "InvalidSpec", "git_url must be"),
        ({"git_url": "https://git.example/\n"}, {}, "InvalidSpec", "git_url must be"),
        ({"git_url": "https:///r.git"}, {}, "InvalidSpec", "the URL has no host"),
        ({"path": "tasks/a\x07"}, {}, "InvalidSpec", "the directory cannot name a task"),
        ({"path": "n" * 241}, {}, "InvalidSpec", "the directory cannot name a task: at most 240"),
        ({"path": f"{'n/' * 2048}n"}, {}, "InvalidSpec", "path must have at most 4096 characters"),
        ({"git_url": "https://git.example/r.git"}, {"allowed_hosts": ("127.0.0.1",)}, "TaskSourceNotAllowed", "git.example"),
        ({"git_url": "http://169.254.169.254/r"}, {"blocked_networks": ("169.254.0.0/16",)}, "TaskSourceNotAllowed", "169.254"),
        ({"git_commit_id": "0" * 40}, {}, "TaskNotFound", "has no commit"),
        ({"git_commit_id": "none"}, {}, "TaskNotFound", "no branch or tag 'none'"),
    ],
)
async def test_what_the_operator_cannot_fetch_is_refused_by_name(
    registry: RegistryServer, cache: TaskCache, row: dict[str, Any], rules: dict[str, Any], reason: str, message: str
) -> None:
    registry.add("one", "a")
    registry.rows[0] |= row
    error = await refused(cache, registry.request(), **rules)
    assert (error.reason, error.transient) == (reason, False) and message in str(error), error
    assert "key" not in str(error)
    if row.get("path") == "here/t":
        registry.add("one", "b")
        assert (await fetch(cache, registry.request(dataset={"exclude": ["t"]}))).tasks[0].name == "b"


async def test_a_registry_that_is_blocked_missing_or_no_registry_is_refused(registry: RegistryServer, cache: TaskCache) -> None:
    request = registry.request()
    assert (await refused(cache, request, blocked_networks=("127.0.0.0/8",))).reason == "TaskSourceNotAllowed"
    assert (await refused(cache, request, allowed_hosts=("git.example",))).reason == "TaskSourceNotAllowed"
    (registry.server.directory / "registry.json").write_text("no JSON")
    assert "is not a registry.json" in str(await refused(cache, request))
    (registry.server.directory / "registry.json").unlink()
    assert (await refused(cache, request)).reason == "TaskNotFound"
