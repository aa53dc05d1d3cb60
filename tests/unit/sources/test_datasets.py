"""Datasets of a registry.json: the selected version, the selected tasks and their order, and the errors."""

from __future__ import annotations

import json
from fnmatch import fnmatch
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multistep.errors import SourceError
from multistep.sources.task.harbor_registry import (
    DatasetTask,
    Selection,
    distinct_names,
    find_dataset,
    newest_version,
    parse_registry,
    select_tasks,
)

URL = "https://git.example/r.git"
COMMIT = "a" * 40
NAMES = ["a", "ab", "b", "b-1", "[x]", "A"]
PATTERNS = ["*", "a*", "?", "[ab]", "[!a]*", "b-?", "", "A", "[x]", "[[]x]"]


def entry(path: str, url: str | None = URL, commit: str | None = COMMIT, name: str = "any") -> dict[str, Any]:
    return {"name": name, "path": path, "git_url": url, "git_commit_id": commit}


def dataset(*tasks: dict[str, Any], name: str = "bench", version: str = "1.0") -> dict[str, Any]:
    return {"name": name, "version": version, "description": "d", "tasks": list(tasks)}


def selected(rows: list[Any], **selection: Any) -> list[DatasetTask]:
    chosen = Selection(**{"name": "bench", **selection})
    return select_tasks(find_dataset(parse_registry(json.dumps(rows).encode(), "R"), chosen, "R"), chosen, "R")


def rejected(rows: list[Any], **selection: Any) -> str:
    with pytest.raises(SourceError) as caught:
        selected(rows, **selection)
    assert not caught.value.transient
    return str(caught.value)


@given(
    names=st.lists(st.sampled_from(NAMES), min_size=1, max_size=8),
    include=st.lists(st.sampled_from(PATTERNS), max_size=3),
    exclude=st.lists(st.sampled_from(PATTERNS), max_size=2),
    limit=st.none() | st.integers(1, 9),
)
def test_the_tasks_that_match_are_selected_in_the_datasets_order(
    names: list[str], include: list[str], exclude: list[str], limit: int | None
) -> None:
    rows = [dataset(*(entry(f"tasks/{number}/{name}") for number, name in enumerate(names)))]
    numbers = [number for number, name in enumerate(names) if not include or any(fnmatch(name, each) for each in include)]
    numbers = [number for number in numbers if not any(fnmatch(names[number], each) for each in exclude)][:limit]
    choice: dict[str, Any] = {"include": include, "exclude": exclude, "limit": limit}
    if numbers:
        assert [each.path for each in selected(rows, **choice)] == [f"tasks/{number}/{names[number]}" for number in numbers]
    else:
        assert "no task matches" in (text := rejected(rows, **choice)) or "all tasks are excluded" in text


@given(names=st.lists(st.sampled_from(["a", "a-2", "a-3", "b", ""]), max_size=12))
def test_every_task_has_its_own_name_and_the_first_of_a_name_keeps_it(names: list[str]) -> None:
    found = distinct_names([DatasetTask(name, name, URL) for name in names])
    assert len(set(found)) == len(names) == len(found)
    wanted = [name or "r" for name in names]
    assert all(found[wanted.index(name)] == name for name in wanted)


@pytest.mark.parametrize(
    ("versions", "wanted"),
    [
        (["1.0", "head", "2.0"], "head"),
        (["1.9", "1.10", "x"], "1.10"),
        (["2.0rc1", "1.0"], "2.0rc1"),
        (["1.0", "1.0.0"], "1.0"),
        (["old", "new"], "old"),
    ],
)
def test_the_newest_version_is_head_or_the_highest(versions: list[str], wanted: str) -> None:
    assert newest_version(versions) == wanted
    rows = [dataset(entry(f"t/{version}"), version=version) for version in versions]
    assert [each.name for each in selected(rows)] == [wanted]


def test_of_equal_versions_the_last_one_counts() -> None:
    assert [each.name for each in selected([dataset(entry("a")), dataset(entry("b"))], version="1.0")] == ["b"]


def test_paths_and_commits_are_normalized() -> None:
    rows = [
        dataset(entry("./x//y/../t/", commit="A" * 40), entry("u", commit=None), entry("v", commit="HEAD"), entry(".", commit="v1"))
    ]
    assert selected(rows) == [
        DatasetTask("t", "x/t", URL, COMMIT),
        DatasetTask("u", "u", URL, ""),
        DatasetTask("v", "v", URL, ""),
        DatasetTask("", "", URL, "v1"),
    ]


def test_a_path_without_a_repository_is_local_and_the_caller_knows_its_name() -> None:
    rows = [dataset(entry("here/t", url=None))]
    assert selected(rows) == [DatasetTask("t", "here/t")]
    chosen = Selection("bench", include=["real"])
    (found,) = select_tasks(parse_registry(json.dumps(rows).encode(), "R")[0], chosen, "R", lambda path: {"here/t": "real"}[path])
    assert found == DatasetTask("real", "here/t")


@pytest.mark.parametrize(
    ("rows", "selection", "message"),
    [
        ([], {}, "R has no dataset 'bench'; it has none"),
        ([dataset(entry("t"), name="other")], {}, "R has no dataset 'bench'; it has 'other'"),
        ([dataset(entry("t"))], {"version": "2"}, "R has no version '2' of dataset 'bench'; it has '1.0'"),
        ([dataset()], {}, "R: dataset bench@1.0 has no tasks"),
        ([dataset(entry("t"))], {"include": ["x*"]}, "R: dataset bench@1.0: no task matches 'x*'; it has 't'"),
        ([dataset(entry("t"))], {"exclude": ["t"]}, "R: dataset bench@1.0: all tasks are excluded"),
        ([dataset(entry("/t"))], {}, "R: dataset bench@1.0: tasks[0]: path '/t' must be relative, and stay in the repository"),
        ([dataset(entry("a/../../t"))], {}, "path 'a/../../t' must be relative"),
        ([dataset({"path": "t"})], {}, "tasks[0]: name and path must be strings"),
        ([dataset({**entry("t"), "git_commit_id": 1})], {}, "tasks[0]: git_url and git_commit_id must be strings"),
        ([{**dataset(), "version": 1}], {}, "R: [0].version must be a string"),
        ([{**dataset(), "tasks": {}}], {}, "R: [0].tasks must be a list of objects"),
        (["x"], {}, "R: [0] must be an object"),
        ([], {"name": "org/bench"}, "run `harbor download org/bench`, then `multistep sweep run` with the downloaded directory"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(rows: list[Any], selection: dict[str, Any], message: str) -> None:
    assert message in rejected(rows, **selection)


@pytest.mark.parametrize("data", [b"{}", b"nothing", b"\xff", b"[" * 100_000])
def test_a_file_that_is_no_registry_is_rejected(data: bytes) -> None:
    with pytest.raises(SourceError, match=r"is not a registry\.json"):
        parse_registry(data, "R")
