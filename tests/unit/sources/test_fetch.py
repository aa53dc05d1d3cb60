"""Fetch tasks from real servers, in the child process that the operator uses."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from multistep.sources.fetch.fetch_messages import FetchRequest, FetchResult, FetchRules
from multistep.sources.load.fetch_process import fetch_in_child
from multistep.sources.load.task_cache import TaskCache
from multistep.sources.task.bundle import Bundle, digest_of, pack_directory
from tests.support import git_server, servers
from tests.support.images import image_layer, push_image
from tests.unit.sources.fetch_cases import Repository, fetched, refused, same

BASIC = {"username": git_server.USER, "password": git_server.PASSWORD}


# -- tasks in git repositories


@pytest.fixture
def repository(git: servers.Server, task: Path, tmp_path: Path) -> Repository:
    (tmp_path / "work/tasks").mkdir(parents=True)
    task.rename(tmp_path / "work/tasks/t")
    subprocess.run(["git", "init", "-q", "--bare", "-b", "main", str(git.directory / "r.git")], check=True)
    return Repository(tmp_path / "work", git.directory / "r.git")


async def test_a_branch_is_resolved_and_what_it_was_is_fetched_after_it_moved(
    git: servers.Server, repository: Repository, cache: TaskCache, tmp_path: Path
) -> None:
    before = repository.commit()
    url = f"{git.url}/git/r.git"
    first, bundle = await fetched(cache, FetchRequest("git", url, ref="main", path="tasks/t"))
    assert first.revision == before and same(bundle, tmp_path / "work/tasks/t")
    (tmp_path / "work/tasks/t/new").write_text("new\n")
    after = repository.commit()
    moved, newer = await fetched(cache, FetchRequest("git", url, ref="main", path="tasks/t"))
    assert moved.revision == after and "new" in newer.entries
    cache.drop(FetchRequest("git", url, path="tasks/t").key(before))
    again, older = await fetched(cache, FetchRequest("git", url, ref="main", path="tasks/t", revision=before))
    assert (again.digest, older.entries) == (first.digest, bundle.entries)


async def test_tags_commits_and_the_default_branch_name_a_commit(
    git: servers.Server, repository: Repository, cache: TaskCache
) -> None:
    commit = repository.commit("v1")
    for ref in ("v1", "", commit, "refs/tags/v1", "refs/heads/main"):
        found, _ = await fetched(cache, FetchRequest("git", f"{git.url}/git/r.git", ref=ref, path="/tasks/t/"))
        assert found.revision == commit, ref


async def test_what_the_cache_has_is_not_fetched_again(git: servers.Server, repository: Repository, cache: TaskCache) -> None:
    repository.commit()
    request = FetchRequest("git", f"{git.url}/git/r.git", path="tasks/t")
    first, _ = await fetched(cache, request)
    asked = git.log.read_text().count("POST")
    second, _ = await fetched(cache, request)
    assert first.file and not second.file and second.digest == first.digest
    assert git.log.read_text().count("POST") == asked + 1  # one request to resolve the branch


async def test_a_private_repository_wants_credentials_and_hides_them(
    git: servers.Server, repository: Repository, cache: TaskCache
) -> None:
    repository.commit()
    url = f"{git.url}/private/r.git"
    _, bundle = await fetched(cache, FetchRequest("git", url, path="tasks/t", scope="uid", credentials=BASIC))
    assert "task.toml" in bundle.entries
    for credentials in ({}, {"username": "somebody", "password": "wrong-password"}):
        error = await refused(cache, FetchRequest("git", url, path="tasks/t", credentials=credentials))
        assert error.reason == "TaskAccessDenied" and not error.transient
    unsafe = await refused(cache, FetchRequest("git", url, path="tasks/t", credentials=BASIC), insecure_hosts=())
    assert unsafe.reason == "TaskAccessDenied" and "without TLS" in str(unsafe)


@pytest.mark.parametrize(
    ("changes", "reason", "output"),
    [
        ({"location": "/git/none.git"}, "TaskNotFound", "not a git repository"),
        ({"ref": "none"}, "TaskNotFound", "no branch or tag 'none'"),
        ({"ref": "0" * 39 + "1"}, "TaskNotFound", "has no commit"),
        ({"path": "tasks/none"}, "TaskNotFound", "no directory tasks/none"),
        ({"path": "tasks/t/task.toml"}, "TaskNotFound", "no directory"),
        ({"path": "tasks"}, "InvalidSpec", "task.toml is missing"),
    ],
)
async def test_what_is_not_in_a_repository_is_reported(
    git: servers.Server, repository: Repository, cache: TaskCache, changes: Mapping[str, str], reason: str, output: str
) -> None:
    repository.commit()
    wanted = {"location": "/git/r.git", "path": "tasks/t", **changes}
    error = await refused(cache, FetchRequest("git", git.url + wanted.pop("location"), **wanted))  # type: ignore[arg-type]
    assert (error.reason, error.transient) == (reason, False) and output in str(error), error


async def test_a_branch_that_is_a_tag_too_must_be_distinguished(
    git: servers.Server, repository: Repository, cache: TaskCache
) -> None:
    repository.commit("main")
    error = await refused(cache, FetchRequest("git", f"{git.url}/git/r.git", ref="main", path="tasks/t"))
    assert "refs/heads/main or refs/tags/main" in str(error)


async def test_pointers_of_large_file_storage_are_no_files(
    git: servers.Server, repository: Repository, cache: TaskCache, tmp_path: Path
) -> None:
    (tmp_path / "work/tasks/t/big").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    repository.commit()
    assert "LFS" in str(await refused(cache, FetchRequest("git", f"{git.url}/git/r.git", path="tasks/t")))


# -- tasks in container registries


@pytest.fixture
async def registry() -> AsyncIterator[servers.Registry]:
    async with servers.registry() as server:
        yield server


async def test_an_image_is_its_layers_one_above_the_other(registry: servers.Registry, cache: TaskCache) -> None:
    layers = [
        image_layer({"task/task.toml": "old", "task/gone": "x", "task/d/a": "x", "other": "x"}),
        image_layer({"task/task.toml": "new", "task/.wh.gone": "", "task/d/.wh..wh..opq": "", "task/d/b": "y"}),
    ]
    digest = await push_image(registry, "team/image", "1", layers)
    found, bundle = await fetched(cache, FetchRequest("oci", f"{registry.host}/team/image:1", path="/task"))
    assert found.revision == digest
    assert {path: each.data for path, each in bundle.entries.items() if each.kind == "file"} == {"task.toml": b"new", "d/b": b"y"}
    pinned, _ = await fetched(cache, FetchRequest("oci", f"{registry.host}/team/image@{digest}", path="/task", revision=digest))
    assert pinned.digest == found.digest and not pinned.file


@pytest.mark.parametrize(
    ("image", "path", "reason", "output"),
    [
        ("team/none:1", "task", "TaskNotFound", "does not exist"),
        ("team/image:none", "task", "TaskNotFound", "does not exist"),
        (f"team/image@sha256:{'0' * 64}", "task", "TaskNotFound", "does not exist"),
        ("team/image:1", "none", "InvalidSpec", "no directory /none"),
        ("team/image:1", "", "InvalidSpec", "task.toml is missing"),
        ("Team/IMAGE", "", "InvalidSpec", "not an image reference"),
    ],
)
async def test_what_is_not_in_a_registry_is_reported(
    registry: servers.Registry, cache: TaskCache, image: str, path: str, reason: str, output: str
) -> None:
    await push_image(registry, "team/image", "1", [image_layer({"task/task.toml": ""})])
    error = await refused(cache, FetchRequest("oci", f"{registry.host}/{image}", path=path))
    assert (error.reason, error.transient) == (reason, False) and output in str(error), error


async def test_a_private_registry_wants_the_login_of_its_host(cache: TaskCache) -> None:
    async with servers.registry(private=True) as registry:
        await push_image(registry, "team/image", "1", [image_layer({"task.toml": ""})])

        def secret(host: str, password: str) -> Mapping[str, str]:
            return {".dockerconfigjson": json.dumps({"auths": {host: {"username": registry.username, "password": password}}})}

        image = f"{registry.host}/team/image:1"
        await fetched(cache, FetchRequest("oci", image, credentials=secret(registry.host, registry.password)))
        for credentials in ({}, secret(registry.host, "wrong-password"), secret("elsewhere:1", registry.password)):
            assert (
                await refused(cache, FetchRequest("oci", image, scope="other", credentials=credentials))
            ).reason == "TaskAccessDenied"


async def test_a_layer_that_was_changed_is_refused(registry: servers.Registry, cache: TaskCache) -> None:
    await push_image(registry, "team/image", "1", [layer := image_layer({"task.toml": ""})])
    blob = registry.directory / f"docker/registry/v2/blobs/sha256/{digest_of(layer)[7:9]}/{digest_of(layer)[7:]}/data"
    blob.write_bytes(image_layer({"task.toml": "x"}))
    error = await refused(cache, FetchRequest("oci", f"{registry.host}/team/image:1"))
    assert error.reason == "TaskDigestMismatch"


# -- many tasks at once


async def many(cache: TaskCache, request: FetchRequest) -> dict[str, Bundle]:
    """Fetch all tasks of a directory at once and return them by name; check that each task is the same when fetched alone."""
    found = await fetch_in_child(request, FetchRules(insecure_hosts=("127.0.0.1:*",)), cache.directory)
    assert not found.file
    for each in found.tasks:
        cache.put(request.below(each.name).key(found.revision), FetchResult(found.revision, each.digest, each.file))
    assert list(cache.incoming.iterdir()) == []
    bundles = {}
    for each in found.tasks:
        alone = replace(request.below(each.name), revision=found.revision)
        kept, bundles[each.name] = await fetched(cache, alone)
        assert not kept.file and kept.digest == each.digest
        cache.drop(alone.key(found.revision))
        again, _ = await fetched(cache, alone)
        assert again.file and again.digest == each.digest
    return bundles


async def test_all_tasks_of_a_directory_in_git_are_fetched_at_once(
    git: servers.Server, repository: Repository, cache: TaskCache, tmp_path: Path
) -> None:
    shutil.copytree(tmp_path / "work/tasks/t", tmp_path / "work/tasks/t-2", symlinks=True)
    (tmp_path / "work/tasks/none").mkdir()
    (tmp_path / "work/tasks/none/README").write_text("no task")
    (tmp_path / "work/tasks/README").write_text("no task either")
    repository.commit()
    found = await many(cache, FetchRequest("git", f"{git.url}/git/r.git", ref="main", path="tasks", many=True))
    assert list(found) == ["t", "t-2"] and all(same(each, tmp_path / "work/tasks/t") for each in found.values())


async def test_all_tasks_of_an_image_are_fetched_at_once(registry: servers.Registry, cache: TaskCache) -> None:
    await push_image(registry, "team/image", "1", [image_layer({"all/a/task.toml": "a", "all/b/task.toml": "b", "all/c/x": ""})])
    found = await many(cache, FetchRequest("oci", f"{registry.host}/team/image:1", path="/all", many=True))
    assert {name: each.entries["task.toml"].data for name, each in found.items()} == {"a": b"a", "b": b"b"}
    error = await refused(cache, FetchRequest("oci", f"{registry.host}/team/image:1", path="/all/c", many=True))
    assert error.reason == "TaskNotFound" and "no directory directly below '/all/c' has a task.toml" in str(error)


async def test_all_tasks_of_a_file_are_fetched_at_once(git: servers.Server, cache: TaskCache, task: Path, tmp_path: Path) -> None:
    (tmp_path / "whole/all").mkdir(parents=True)
    shutil.copytree(task, tmp_path / "whole/all/t", symlinks=True)
    data = pack_directory(tmp_path / "whole")
    (git.directory / "all.tar.gz").write_bytes(data)
    request = FetchRequest("url", f"{git.url}/files/all.tar.gz", digest=digest_of(data), path="all", many=True)
    found = await many(cache, request)
    assert list(found) == ["t"] and same(found["t"], task)
    assert (await refused(cache, replace(request, path="other"))).reason == "TaskNotFound"
    assert "task.toml is missing at 'all'" in str(await refused(cache, replace(request, many=False)))


def test_the_fetching_process_starts_without_the_models_of_the_api() -> None:
    """They take most of a second and 20 MB, of which a fetch needs nothing."""
    code = "import multistep.sources.fetch.__main__, sys; print('pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
