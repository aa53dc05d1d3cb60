"""Test `multistep package --to` with a real registry and a real S3 server, from which the operator's code then fetches the task."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from multistep.api.trial.trial import parse_trial
from multistep.sources.fetch.fetch_messages import FetchResult, FetchRules
from multistep.sources.fetch.registry_client import ImageReference, registry_login
from multistep.sources.load.fetch_process import fetch_in_child
from multistep.sources.load.remote_tasks import request_for
from multistep.sources.load.task_cache import TaskCache
from multistep.sources.task.bundle import digest_of, pack_directory
from tests.support import servers

from .conftest import Invoke


@pytest.fixture(autouse=True)
def _nobody_logged_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))


def logged_in(tmp_path: Path, host: str, user: str, password: str) -> str:
    config = json.dumps({"auths": {host: {"auth": base64.b64encode(f"{user}:{password}".encode()).decode()}}})
    (tmp_path / "docker").mkdir()
    (tmp_path / "docker/config.json").write_text(config)
    return config


async def package(invoke: Invoke, task: Path, *arguments: object) -> tuple[dict[str, Any], str]:
    done = await asyncio.to_thread(invoke, "package", task, "--name", "x", *arguments)
    assert done.exit_code == 0, done.stderr
    return yaml.safe_load(done.stdout), done.stderr


async def fetched(tmp_path: Path, manifest: dict[str, Any], **credentials: str) -> FetchResult:
    cache = TaskCache(tmp_path / "cache", 1 << 30)
    cache.open()
    request = request_for(parse_trial(manifest).spec.task, "", "", credentials)
    return await fetch_in_child(request, FetchRules(insecure_hosts=("127.0.0.1:*",)), cache.directory)


@pytest.fixture
async def registry() -> AsyncIterator[servers.Registry]:
    async with servers.registry(private=True) as server:
        yield server


@pytest.fixture
async def s3() -> AsyncIterator[servers.S3]:
    async with servers.s3() as server:
        yield server


async def test_a_task_goes_to_a_registry_once_and_the_operator_finds_it(
    registry: servers.Registry, task: Path, invoke: Invoke, tmp_path: Path
) -> None:
    config = logged_in(tmp_path, registry.host, registry.username, registry.password)
    to = ("--to", f"oci://{registry.host}/tasks/mine:1", "--plain-http", "--source-secret", "registry")
    first, output = await package(invoke, task, *to)
    again, said_again = await package(invoke, task, *to)
    assert first == again and "pushed" in output and "exists already" in said_again
    source = first["spec"]["task"]["oci"]
    assert source["image"].startswith(f"{registry.host}/tasks/mine@sha256:") and source["secretRef"] == {"name": "registry"}
    assert (await fetched(tmp_path, first, **{".dockerconfigjson": config})).digest == digest_of(pack_directory(task))


async def test_a_task_goes_to_a_bucket_once_and_the_operator_finds_it(
    s3: servers.S3, task: Path, invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    to = ("--to", f"s3://{s3.bucket}/some/tasks/")
    first, output = await package(invoke, task, *to)
    again, said_again = await package(invoke, task, *to)
    assert first == again and "pushed" in output and "exists already" in said_again
    source = first["spec"]["task"]["url"]
    assert source["digest"] == digest_of(pack_directory(task)) and source["url"].startswith(f"s3://{s3.bucket}/some/tasks/my-task-")
    assert (await fetched(tmp_path, first, **s3.environment)).digest == source["digest"]


@pytest.mark.parametrize(
    ("arguments", "code", "output"),
    [
        (["--to", "ftp://x"], 2, "must be oci://HOST/REPOSITORY:TAG or s3://BUCKET/PREFIX"),
        (["--to", "oci://Bad/NAME"], 2, "not an image reference"),
        (["--to", f"oci://h.example/r@sha256:{'0' * 64}"], 2, "a tag, not a digest"),
        (["--to", "oci://127.0.0.1:1/r:1", "--plain-http"], 4, "cannot be reached"),
        (["--plain-http"], 2, "are for --to"),
    ],
)
def test_unusable_destinations_are_rejected(task: Path, invoke: Invoke, arguments: list[str], code: int, output: str) -> None:
    done = invoke("package", task, *arguments)
    assert done.exit_code == code and output in done.stderr and done.stdout == ""


@pytest.mark.parametrize(
    ("entry", "image", "found"),
    [
        ("https://index.docker.io/v1/", "ubuntu", True),
        ("docker.io", "me/mine:1", True),
        ("r.example:5000", "r.example:5000/a/b:1", True),
        ("https://r.example/v2/", "r.example/a", True),
        ("r.example/team", "r.example/team/a", True),
        ("r.example/team", "r.example/teamwork/a", False),
        ("r.example", "r.example.evil.example/a", False),
        ("r.example:5000", "r.example/a", False),
    ],
)
def test_a_login_is_for_its_registry_only(entry: str, image: str, found: bool) -> None:
    config = json.dumps({"auths": {entry: {"username": "u", "password": "p"}}})
    assert registry_login(config, ImageReference.parse(image)) == (("u", "p") if found else None)


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("ubuntu", "docker.io/library/ubuntu:latest"),
        ("me/mine:1", "docker.io/me/mine:1"),
        ("localhost/x", "localhost/x:latest"),
        ("r.example:5000/a/b", "r.example:5000/a/b:latest"),
        (f"r.example/a:1@sha256:{'a' * 64}", f"r.example/a:1@sha256:{'a' * 64}"),
    ],
)
def test_references_are_read_as_docker_does(text: str, whole: str) -> None:
    assert str(ImageReference.parse(text)) == whole
