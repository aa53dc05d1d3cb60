"""Test sweeps of datasets: a registry.json with two repositories, by the resource and by the command line."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from multistep.errors import ClusterError
from multistep.kube.resources import CONFIG_MAPS, SWEEPS, TRIALS
from tests.e2e.given import Object, condition, holds
from tests.simulated.given import IMAGE, Given, Step
from tests.support import servers

TOML = '[[steps]]\nname = "a"\n'


def git(directory: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=n", "-c", "user.email=e", *arguments]
    return subprocess.run(command, cwd=directory, check=True, capture_output=True, text=True).stdout.strip()


def repository(server: servers.Server, work: Path, *tasks: str) -> str:
    """Serve a repository with these tasks, each of which is solved by its own solution only; return its commit."""
    bare = server.directory / f"{work.name}.git"
    work.mkdir()
    git(work, "init", "-q", "-b", "main")
    git(work, "init", "-q", "-b", "main", "--bare", str(bare))
    git(bare, "config", "uploadpack.allowFilter", "true")
    for task in tasks:
        solved = Step("a", f"write /tmp/solved {work.name}-{task}", f"reward-if /tmp/solved {work.name}-{task}")
        for path, text in {"task.toml": TOML, **solved.files()}.items():
            file = work / "tasks" / task / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            file.chmod(0o755 if path.endswith(".sh") else 0o644)
    git(work, "add", "-A")
    git(work, "commit", "-q", "-m", "m")
    git(work, "push", "-q", str(bare), "HEAD:refs/heads/main")
    return git(work, "rev-parse", "HEAD")


def sweep(name: str, dataset: Object) -> Object:
    return {
        "apiVersion": SWEEPS.api_version,
        "kind": SWEEPS.kind,
        "metadata": {"name": name},
        "spec": {
            "tasksFrom": {"dataset": dataset},
            "agents": [{"name": "oracle", "agent": {"name": "oracle"}}],
            "template": {"spec": {"environment": {"image": IMAGE}}},
        },
    }


def registry(server: servers.Server, commit: str) -> list[dict[str, Any]]:
    first = [
        {"name": task, "git_url": f"{server.url}/git/one.git", "git_commit_id": commit, "path": f"tasks/{task}"}
        for task in ("web-1", "web-2", "db")
    ]
    second = [{"name": task, "git_url": f"{server.url}/git/two.git", "path": f"tasks/{task}"} for task in ("web-1", "web-slow")]
    local = {"name": "here", "path": "here"}
    return [
        {"name": "bench", "version": "1.9", "description": "old", "tasks": first[:1]},
        {"name": "bench", "version": "1.10", "description": "new", "tasks": [*first, *second, local]},
    ]


async def test_a_dataset_of_two_repositories_is_run_to_reward_1(given: Given, tmp_path: Path) -> None:
    async with servers.git(servers.node()) as server:
        commits = [
            repository(server, tmp_path / "one", "web-1", "web-2", "db"),
            repository(server, tmp_path / "two", "web-1", "web-slow"),
        ]
        (server.directory / "registry.json").write_text(json.dumps(registry(server, commits[0])))
        place = f"{server.url}/files/registry.json"
        selection = {"registry": place, "name": "bench", "include": ["web-*"], "exclude": ["*-slow"]}
        await given.applied(sweep("all", selection))
        await given.applied(sweep("local", {"registry": place, "name": "bench"}))
        with pytest.raises(ClusterError, match="run `harbor download ORG/NAME`, then `multistep sweep run`"):
            await given.applied(sweep("hub", {"registry": place, "name": "org/bench"}))
        line = await command_line(given, place)

        done = await given.sweep_ended("all")
        assert holds(done, "Complete"), done["status"]
        assert done["status"]["agents"] == [{"name": "oracle", "counted": 3, "finished": 3, "passed": 3, "mean": 1}]
        pinned = done["status"]["tasksFrom"]
        listed = (await given.client.get(CONFIG_MAPS, given.namespace, pinned["configMap"]))["data"]["tasks"].splitlines()
        one, two = f"{server.url}/git/one.git", f"{server.url}/git/two.git"
        assert [json.loads(each) for each in listed] == [
            ["web-1", one, commits[0], "tasks/web-1"],
            ["web-2", one, commits[0], "tasks/web-2"],
            ["web-1-2", two, commits[1], "tasks/web-1"],
        ]
        refused = await given.sweep_ended("local")
        assert "task 'here' is the local path 'here'" in condition(refused, "Failed")["message"]
        await line
        await given.sweep_until("line", lambda found: found["status"]["trials"]["created"] == 2)
        chosen = await given.client.list_all(TRIALS, given.namespace, label_selector="multistep.dev/sweep=line")
        assert {each["metadata"]["annotations"]["multistep.dev/task"] for each in chosen} == {"web-1", "db"}


async def command_line(given: Given, place: str) -> asyncio.Task[None]:
    """Start `multistep sweep run -d`, and return the task that waits for its end. The deployed operator runs that sweep."""
    command = ["multistep", "sweep", "run", "-d", "bench@1.10", "--registry", place, "--task", "web-?", "--task", "db"]
    command += ["--exclude", "web-2", "--limit", "2", "--image", IMAGE, "--name", "line", "-n", given.namespace, "--detach"]

    def run() -> None:
        done = subprocess.run(command, env=os.environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "dataset bench@1.10: 2 of 6 tasks" in done.stderr

    return asyncio.create_task(asyncio.to_thread(run))
