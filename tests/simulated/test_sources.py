"""Test tasks from real registries, repositories and object stores, all concurrently."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import subprocess
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from multistep.errors import ClusterError
from multistep.kube.resources import SWEEPS
from multistep.sources.task.bundle import digest_of, pack_directory
from tests.e2e.given import Object, condition, finished, holds
from tests.simulated.given import IMAGE, Given, Step, reward
from tests.support import git_server, servers
from tests.support.images import image_layer, push_image

TOML = '[[steps]]\nname = "a"\n'


def files(value: float) -> dict[str, str]:
    """Return the files of a one-step task whose verifier writes this reward."""
    return {"task.toml": TOML, **Step("a", test=reward(value)).files()}


def written(directory: Path, value: float) -> Path:
    for path, text in files(value).items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_text(text)
        (directory / path).chmod(0o755 if path.endswith(".sh") else 0o644)
    return directory


def trial(name: str, source: Object) -> Object:
    spec = {"task": source, "agent": {"name": "oracle"}, "environment": {"image": IMAGE}}
    return {"apiVersion": "multistep.dev/v1alpha1", "kind": "MultiStepTrial", "metadata": {"name": name}, "spec": spec}


def git(directory: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=n", "-c", "user.email=e", *arguments]
    return subprocess.run(command, cwd=directory, check=True, capture_output=True, text=True).stdout.strip()


def commit(work: Path, value: float, bare: Path) -> str:
    """Commit a task with this reward to the repository's main branch."""
    written(work / "tasks/t", value)
    git(work, "add", "-A")
    git(work, "commit", "-q", "-m", "m")
    git(work, "push", "-q", str(bare), "HEAD:refs/heads/main")
    return git(work, "rev-parse", "HEAD")


@dataclass(frozen=True)
class TaskServers:
    """The Git, OCI and S3 servers from which the operator fetches tasks. They run on the cluster's node."""

    git: servers.Server
    registry: servers.Registry
    private: servers.Registry
    s3: servers.S3


@asynccontextmanager
async def task_servers() -> AsyncIterator[TaskServers]:
    place = servers.node()
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        yield TaskServers(
            git=await enter(servers.git(place)),
            registry=await enter(servers.registry(place)),
            private=await enter(servers.registry(place, private=True)),
            s3=await enter(servers.s3(place)),
        )


async def secret(given: Given, name: str, values: Mapping[str, str], type_: str = "Opaque") -> None:
    data = {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}
    await given.applied({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "type": type_, "data": data})


async def package(task: Path, *arguments: str, **env: str) -> Object:
    """Run `multistep package` and return the spec.task that it prints."""
    command = ["multistep", "package", str(task), *arguments]
    done = await asyncio.to_thread(subprocess.run, command, env=os.environ | env, check=True, capture_output=True, text=True)
    made: Object = yaml.safe_load(done.stdout)["spec"]["task"]
    return made


async def given_secrets(given: Given, there: TaskServers) -> None:
    login = {"auths": {there.private.host: {"username": there.private.username, "password": there.private.password}}}
    await secret(given, "registry", {".dockerconfigjson": json.dumps(login)}, "kubernetes.io/dockerconfigjson")
    basic = {"username": git_server.USER, "password": git_server.PASSWORD}
    await secret(given, "git", basic, "kubernetes.io/basic-auth")
    await secret(given, "wrong", {**basic, "password": "wrong-password"}, "kubernetes.io/basic-auth")
    await secret(given, "bucket", {name: value for name, value in there.s3.environment.items() if name != "AWS_ALLOW_HTTP"})


@pytest.mark.long
async def test_tasks_come_from_everywhere_and_what_does_not_come_is_reported(given: Given, tmp_path: Path) -> None:
    async with task_servers() as there:
        await given_secrets(given, there)
        sources = await good_sources(there, tmp_path)
        for name, (source, _) in sources.items():
            await given.applied(trial(name, source))
        bad = bad_sources(there, digest_of(b"other"))
        for name, (source, _) in bad.items():
            await given.applied(trial(name, source))
        await given.applied(trial("away", {"url": {"url": f"http://{servers.node().address}:1/t", "digest": digest_of(b"")}}))

        await given.applied(sweep(sources["git-branch"][0]["git"]))
        started = {name: await given.until(name, resolved) for name in ("git-branch", "git-private")}
        assert not resolved_tasks(await sweep_until(given, lambda found: holds(found, "Suspended"))), "it has not begun"
        await given.client.patch(SWEEPS, given.namespace, "all", {"spec": {"suspend": False}})
        pinned = await sweep_until(given, resolved_tasks)
        commit(tmp_path / "work", 0.9, there.git.directory / "r.git")  # move the Git branch before the second trial is created
        moved = trial("git-moved", sources["git-branch"][0])
        await given.applied(moved)

        for name, (_, wanted) in {**sources, "git-moved": ({}, 0.9)}.items():
            done = await given.until(name, finished)
            assert holds(done, "Complete") and done["status"]["rewards"] == {"reward": wanted}, (name, done["status"])
            assert done["spec"]["task"] == (sources[name][0] if name in sources else moved["spec"]["task"]), "the spec was changed"
        branch = await given.get("git-branch")
        assert branch["status"]["taskSource"] == started["git-branch"]["status"]["taskSource"]
        for name, (_, (reason, output)) in bad.items():
            done = await given.until(name, finished)
            shown = condition(done, "Failed")
            assert (shown["reason"], "rewards" in done["status"]) == (reason, False) and output in shown["message"], (
                name,
                shown,
            )
            assert "wrong-password" not in json.dumps(done["status"])
        away = await given.until("away", lambda obj: "cannot be reached" in condition(obj, "Reconciling")["message"])
        assert condition(away, "Reconciling")["reason"] == "TaskUnavailable"
        swept = await given.sweep_ended("all")
        assert [(each["counted"], each["mean"]) for each in swept["status"]["agents"]] == [(2, sources["git-branch"][1])]
        assert swept["status"]["tasksFrom"] == pinned["status"]["tasksFrom"]
        assert swept["status"]["tasksFrom"]["revision"] == branch["status"]["taskSource"]["revision"]


def sweep(source: Object) -> Object:
    """Return a suspended sweep of all tasks in a Git repository's directory, with one trial at a time."""
    return {
        "apiVersion": SWEEPS.api_version,
        "kind": SWEEPS.kind,
        "metadata": {"name": "all"},
        "spec": {
            "tasksFrom": {"git": {**source, "path": "tasks"}},
            "agents": [{"name": "oracle", "agent": {"name": "oracle"}}],
            "template": {"spec": {"environment": {"image": IMAGE}}},
            "attempts": 2,
            "parallelism": 1,
            "suspend": True,
        },
    }


async def sweep_until(given: Given, done: Callable[[Object], bool]) -> Object:
    return await given.sweep_until("all", done)


def resolved_tasks(obj: Object) -> bool:
    """Return whether the sweep's status shows that its tasks are resolved."""
    return "tasksFrom" in (obj.get("status") or {})


def resolved(obj: Object) -> bool:
    """Return whether the trial's status names the resolved source of its task."""
    return "taskSource" in (obj.get("status") or {})


async def good_sources(there: TaskServers, tmp_path: Path) -> dict[str, tuple[Object, float]]:
    """Create a task in each kind of source; return spec.task and the expected reward by trial name."""
    work = tmp_path / "work"
    work.mkdir()
    for path in (work, there.git.directory / "r.git"):
        git(tmp_path, "init", "-q", "-b", "main", *([] if path == work else ["--bare"]), str(path))
    commit(work, 0.1, there.git.directory / "r.git")
    task = written(tmp_path / "task", 0.2)
    packed = pack_directory(task)
    (there.git.directory / "t.tar.gz").write_bytes(packed)
    below = {f"task/{path}": text for path, text in files(0.3).items()}
    await push_image(there.registry, "images/task", "1", [image_layer({**below, "other": "x"}), image_layer({"task/new": "x"})])
    config = tmp_path / "docker"
    config.mkdir()
    login = {"auths": {there.private.host: {"username": there.private.username, "password": there.private.password}}}
    (config / "config.json").write_text(json.dumps(login))
    to = ("--to", f"oci://{there.private.host}/tasks/t:1", "--plain-http", "--source-secret", "registry")
    artifact = await package(task, *to, DOCKER_CONFIG=str(config))
    in_bucket = await package(task, "--to", f"s3://{there.s3.bucket}/tasks", "--source-secret", "bucket", **there.s3.environment)
    reference = {"name": "git"}
    return {
        "oci-artifact": (artifact, 0.2),
        "oci-image": ({"oci": {"image": f"{there.registry.host}/images/task:1", "path": "/task"}}, 0.3),
        "git-branch": ({"git": {"url": f"{there.git.url}/git/r.git", "ref": "main", "path": "tasks/t"}}, 0.1),
        "git-private": ({"git": {"url": f"{there.git.url}/private/r.git", "path": "tasks/t", "secretRef": reference}}, 0.1),
        "url-http": ({"url": {"url": f"{there.git.url}/files/t.tar.gz", "digest": digest_of(packed)}}, 0.2),
        "url-s3": (in_bucket, 0.2),
    }


def bad_sources(there: TaskServers, other: str) -> dict[str, tuple[Object, tuple[str, str]]]:
    """Return spec.task with the expected failure's reason and a part of its message, by trial name."""
    repository, file = f"{there.git.url}/git/r.git", f"{there.git.url}/files/t.tar.gz"
    wrong = {"name": "wrong"}
    return {
        "oci-none": ({"oci": {"image": f"{there.registry.host}/images/none:1"}}, ("TaskNotFound", "does not exist")),
        "oci-denied": ({"oci": {"image": f"{there.private.host}/tasks/t:1"}}, ("TaskAccessDenied", "access denied")),
        "oci-no-task": ({"oci": {"image": f"{there.registry.host}/images/task:1"}}, ("InvalidSpec", "task.toml is missing")),
        "git-none": ({"git": {"url": repository, "ref": "none"}}, ("TaskNotFound", "no branch or tag 'none'")),
        "git-denied": (
            {"git": {"url": f"{there.git.url}/private/r.git", "secretRef": wrong}},
            ("TaskAccessDenied", "access denied"),
        ),
        "git-no-path": ({"git": {"url": repository, "path": "none"}}, ("TaskNotFound", "no directory none")),
        "url-none": ({"url": {"url": f"{file}.none", "digest": other}}, ("TaskNotFound", "does not exist")),
        "url-digest": ({"url": {"url": file, "digest": other}}, ("TaskDigestMismatch", "has digest")),
        "url-metadata": (
            {"url": {"url": "http://169.254.169.254/latest/meta-data/", "digest": other}},
            ("TaskSourceNotAllowed", "169.254.169.254"),
        ),
    }


async def test_a_url_with_a_password_is_refused_by_the_api_server(given: Given) -> None:
    with pytest.raises(ClusterError, match="must not contain credentials"):
        await given.applied(trial("t", {"git": {"url": "https://me:secret@git.example/r.git"}}))
    with pytest.raises(ClusterError, match="exactly one of bundle, inline, oci, git and url"):
        await given.applied(trial("t", {"oci": {"image": "x"}, "git": {"url": "https://git.example/r.git"}}))
