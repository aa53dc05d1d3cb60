"""Test `multistep dataset` and `sweep run --dataset`, with an in-memory cluster and a real HTTP server for the registry."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from multistep.api.sweep.sweep import parse_sweep

from .conftest import Invoke
from .fakes import START, CliCluster

DONE = {
    "phase": "Complete",
    "conditions": [{"type": "Complete", "status": "True", "lastTransitionTime": START, "reason": "SweepComplete", "message": "m"}],
    "startTime": START,
    "trials": {"total": 1, "created": 1, "finished": 1, "counted": 1},
}
COMMIT = "a" * 40


def entry(path: str, url: str | None = "https://git.example/r.git") -> dict[str, Any]:
    return {"name": path, "path": path, "git_url": url, "git_commit_id": COMMIT if url else None}


def registry(*tasks: dict[str, Any]) -> str:
    row = {"name": "bench", "description": "web\ntasks", "tasks": list(tasks)}
    return json.dumps([{**row, "version": "1.9", "tasks": []}, {**row, "version": "1.10"}])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    tasks = [entry(f"tasks/{name}") for name in ("web-1", "web-2", "db")]
    (tmp_path / "registry.json").write_text(registry(*tasks))
    return tmp_path / "registry.json"


@pytest.fixture
def url(file: Path) -> Iterator[str]:
    """Serve the registry's directory by HTTP, and yield the registry's URL."""
    handler = partial(SimpleHTTPRequestHandler, directory=file.parent)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/registry.json"
        server.shutdown()


def submitted(cluster: CliCluster) -> dict[str, Any]:
    (found,) = cluster.of("TrialSweep")
    parse_sweep(found)
    return dict(found["spec"])


def test_the_datasets_of_a_registry_are_listed(invoke: Invoke, file: Path, url: str) -> None:
    for place in (file, file.parent, url):
        lines = invoke("dataset", "list", "--registry", place).stdout.splitlines()
        assert [line.split() for line in lines] == [
            ["NAME", "VERSION", "TASKS", "DESCRIPTION"],
            ["bench", "1.9", "0", "web", "tasks"],
            ["bench", "1.10", "3", "web", "tasks"],
        ]
    document = json.loads(invoke("dataset", "list", "--registry", file, "-o", "json").stdout)
    assert document[1] == {"name": "bench", "version": "1.10", "description": "web\ntasks", "tasks": 3}


def test_the_tasks_of_the_newest_version_that_match_are_shown(invoke: Invoke, file: Path) -> None:
    shown = invoke("dataset", "show", "bench", "--registry", file, "--task", "web-*", "--exclude", "*-2").stdout.splitlines()
    assert [line.split() for line in shown] == [
        ["TASK", "REPOSITORY", "REF", "PATH"],
        ["web-1", "https://git.example/r.git", COMMIT[:12], "tasks/web-1"],
    ]
    found = json.loads(invoke("dataset", "show", "bench@1.10", "--registry", file, "--limit", "2", "-o", "json").stdout)
    assert (found["name"], found["version"], [each["name"] for each in found["tasks"]]) == ("bench", "1.10", ["web-1", "web-2"])
    assert found["tasks"][0] == {"name": "web-1", "gitURL": "https://git.example/r.git", "ref": COMMIT, "path": "tasks/web-1"}


def test_a_registry_at_a_url_is_left_to_the_operator_with_the_version_that_was_found(
    invoke: Invoke, cluster: CliCluster, url: str
) -> None:
    cluster.story = [DONE]
    options = ("--task", "web-*", "--exclude", "*-2", "--limit", "5", "--attempts", "3", "--image", "img:1")
    done = invoke("sweep", "run", "-d", "bench", "--registry", url, *options)
    assert done.exit_code == 0, done.output
    assert "dataset bench@1.10: 1 of 3 tasks" in done.stderr
    spec = submitted(cluster)
    selection = {"name": "bench", "version": "1.10", "include": ["web-*"], "exclude": ["*-2"], "limit": 5}
    assert spec["tasksFrom"] == {"dataset": {"registry": url, **selection}}
    assert (spec["attempts"], spec["template"]) == (3, {"spec": {"environment": {"image": "img:1"}}})
    assert cluster.of("TrialSweep")[0]["metadata"]["name"].startswith("bench-")


def test_a_registry_in_a_file_becomes_tasks_in_its_order_local_ones_packed(
    task: Path, invoke: Invoke, cluster: CliCluster, file: Path
) -> None:
    cluster.story = [DONE]
    tasks = entry("a/web-1"), entry(str(task), None), entry("b/web-1"), entry(".")
    file.write_text(registry(*tasks))
    done = invoke("sweep", "run", "-d", "bench@1.10", "--registry", file)
    assert done.exit_code == 0, done.output
    found = submitted(cluster)["tasks"]
    assert [each["name"] for each in found] == ["web-1", "My_Task", "web-1-2", "r"]
    git = {"url": "https://git.example/r.git", "ref": COMMIT}
    assert [each.get("git") for each in found] == [{**git, "path": "a/web-1"}, None, {**git, "path": "b/web-1"}, git]
    assert [each["metadata"]["name"] for each in cluster.of("ConfigMap")] == found[1]["bundle"]["configMaps"]


def test_a_local_task_of_a_registry_at_a_url_is_packed_here(
    task: Path, invoke: Invoke, cluster: CliCluster, file: Path, url: str
) -> None:
    cluster.story = [DONE]
    file.write_text(registry(entry("web-1"), entry(str(task), None)))
    assert invoke("sweep", "run", "-d", "bench", "--registry", url, "--image", "img:1").exit_code == 0
    found = submitted(cluster)["tasks"]
    assert [(each["name"], each["environment"]) for each in found] == [
        ("web-1", {"image": "img:1"}),
        ("My_Task", {"image": "img:1"}),
    ]


def test_a_branch_is_resolved_once_for_all_of_its_tasks(
    invoke: Invoke, cluster: CliCluster, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def resolve(remote: object, ref: str) -> str:
        asked.append(ref)
        return COMMIT

    monkeypatch.setattr("multistep.sources.fetch.git.GitRemote.resolve", resolve)
    file.write_text(registry(*({**entry(name), "git_commit_id": ref} for name, ref in (("t", "main"), ("u", "main"), ("v", None)))))
    cluster.story = [DONE]
    assert invoke("sweep", "run", "-d", "bench", "--registry", file).exit_code == 0
    assert sorted(asked) == ["", "main"]
    assert {each["git"]["ref"] for each in submitted(cluster)["tasks"]} == {COMMIT}


def test_a_repository_that_is_away_is_reported_before_anything_is_submitted(
    invoke: Invoke, cluster: CliCluster, file: Path
) -> None:
    file.write_text(registry({**entry("t", "http://127.0.0.1:1/r.git"), "git_commit_id": None}))
    done = invoke("sweep", "run", "-d", "bench", "--registry", file)
    assert done.exit_code == 4 and "Connection refused" in done.stderr
    assert not cluster.of("TrialSweep")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-d", "org/bench@1"), "run `harbor download org/bench@1`, then `multistep sweep run` with the downloaded directory"),
        (("-d", "bench"), "name the registry.json in --registry; without one, a dataset is in Harbor's hosted hub"),
        (("-d", "bench@", "--registry", "FILE"), "must be NAME or NAME@VERSION"),
        (("-d", "none", "--registry", "FILE"), "has no dataset 'none'; it has 'bench'"),
        (("-d", "bench", "--registry", "FILE.none"), "FILE.none: No such file or directory"),
        (("-d", "bench", "--registry", "http://127.0.0.1:1/r.json"), "127.0.0.1:1 cannot be reached"),
        (("-d", "bench", "--registry", "FILE", "tasks/"), "one of these"),
        ((), "give directories of tasks, a file with a sweep, or --dataset NAME: one of these"),
        ((".", "--registry", "FILE"), "--registry applies to --dataset only"),
    ],
)
def test_what_cannot_be_is_reported_with_what_to_do(
    invoke: Invoke, cluster: CliCluster, file: Path, arguments: tuple[str, ...], message: str
) -> None:
    done = invoke("sweep", "run", *(each.replace("FILE", str(file)) for each in arguments))
    assert done.exit_code == (4 if "reached" in message else 2), done.output
    assert message.replace("FILE", str(file)) in done.stderr


def test_a_registry_that_is_too_large_is_refused(invoke: Invoke, tmp_path: Path) -> None:
    large = tmp_path / "large.json"
    subprocess.run(["/usr/bin/truncate", "-s", "17M", str(large)], check=True)
    done = invoke("dataset", "list", "--registry", large)
    assert done.exit_code == 2 and "has more than 16777216 bytes" in done.stderr
