"""Compare the tasks of a dataset with those that Harbor 0.26's own client returns for the same registry.json."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from multistep.client.datasets import Registry
from multistep.errors import SourceError
from multistep.sources.task.harbor_registry import Selection
from tests.harbor.environment import harbor_python

FIRST, SECOND = "https://git.example/first.git", "https://git.example/second"
COMMITS = ["1" * 40, "2" * 40]
NAMES = ["web-1", "web-2", "Web-3", "db", "db.old", "x[1]", "ünï", "no space"]


def git(url: str, path: str, commit: str | None = COMMITS[0]) -> dict[str, Any]:
    return {"name": f"entry of {path}", "git_url": url, "git_commit_id": commit, "path": path}


def local(path: str) -> dict[str, Any]:
    return {"name": "web-1", "path": path}


def dataset(name: str, version: str, *tasks: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "version": version, "description": "d", "tasks": list(tasks), "metrics": [{"type": "mean"}]}


REGISTRY = [
    dataset("bench", "1.9", git(FIRST, "old/web-1")),
    dataset(
        "bench",
        "1.10",
        *(git(FIRST, f"tasks/{name}") for name in NAMES),
        *(git(SECOND, f"./a//{name}/../{name}/", COMMITS[1]) for name in reversed(NAMES)),
        git(FIRST, "tasks/web-1"),
        git(SECOND, "web-9", None),
        git(SECOND, "branch/web-9", "main"),
        git(SECOND, "."),
        local("here/web-1"),
        local("/srv/tasks/db"),
        local("here/../there/./web-2"),
    ),
    dataset("bench", "not a version", git(FIRST, "strange")),
    dataset("rolling", "1.0", git(FIRST, "t")),
    dataset("rolling", "head", git(FIRST, "u", "HEAD")),
    dataset("words", "old", git(FIRST, "old")),
    dataset("words", "new", git(FIRST, "new")),
    dataset("ties", "1.0", git(FIRST, "one")),
    dataset("ties", "1.0.0", git(FIRST, "two")),
    dataset("ties", "1.0a1", git(FIRST, "three")),
    dataset("twice", "1", git(FIRST, "first")),
    dataset("twice", "1", git(FIRST, "second")),
    dataset("outside", "1", git(FIRST, "../t")),
    dataset("absolute", "1", git(FIRST, "/t")),
]
PATTERNS: list[list[str] | None] = [
    None,
    ["*"],
    ["web-?"],
    ["web-1", "d*"],
    ["[!w]*"],
    ["x[[]1]"],
    ["*-*", "ü*"],
    ["none"],
    ["tasks/*"],
    [""],
]
SELECTIONS: list[dict[str, Any]] = [
    *({"name": name} for name in ("bench", "rolling", "words", "ties", "twice", "outside", "absolute", "none")),
    *({"name": "bench", "version": version} for version in ("1.9", "not a version", "2", "1.10")),
    *(
        {"name": "bench", "include": include, "exclude": exclude, "limit": limit}
        for include, exclude, limit in itertools.product(PATTERNS, PATTERNS, (None, 1, 5, 100))
    ),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("datasets")
    (directory / "registry.json").write_text(json.dumps(REGISTRY))
    (directory / "selections.json").write_text(json.dumps(SELECTIONS))
    return directory


@pytest.fixture(scope="module")
def harbors(place: Path) -> Any:
    done = harbor_python().run(Path(__file__).with_name("harbors_datasets.py"), place)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


def ours(registry: Registry, selection: dict[str, Any]) -> list[list[str | None]] | None:
    given = {key: value for key, value in selection.items() if value is not None}
    try:
        found = registry.select(Selection(**given)).tasks
    except SourceError as error:
        return [] if "all tasks are excluded" in str(error) else None
    return [[each.url, each.ref or None, each.path if each.url else Path(each.path).as_posix()] for each in found]


def test_every_selection_gives_the_tasks_that_harbors_client_gives(place: Path, harbors: Any) -> None:
    registry = Registry.read(str(place))
    for selection, wanted in zip(SELECTIONS, harbors["tasks"], strict=True):
        assert ours(registry, selection) == (wanted and [_normal(*each) for each in wanted]), selection
    counts = {len(each) for each in harbors["tasks"] if each is not None}
    assert None in harbors["tasks"] and len(counts) > 5, "the selections are too much alike"


def test_the_datasets_are_those_that_harbors_client_lists(place: Path, harbors: Any) -> None:
    found = Registry.read(str(place)).datasets
    assert [[each.name, each.version, len(each.tasks)] for each in found] == harbors["datasets"]


def _normal(url: str | None, commit: str | None, path: str) -> list[str | None]:
    """Return a task as the operator writes it: no commit for HEAD, because that is the default branch; the empty path for the
    root."""
    return [url, None if commit == "HEAD" else commit, "" if path == "." else path]
