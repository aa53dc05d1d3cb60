from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multistep.api.task.task_toml import ArtifactConfig
from multistep.engine.plan.select_artifacts import LOGS_ARTIFACTS, Placement, artifacts_manifest, pass_entries, place_artifacts

FILE = ("",)
Entry = tuple[str, Sequence[str]] | tuple[str, Sequence[str], str]  # source, collected paths below it, destination


def entry(source: str, destination: str | None = None, *exclude: str) -> ArtifactConfig:
    return ArtifactConfig(source=source, destination=destination, exclude=list(exclude))


def places(*entries: Entry) -> list[str]:
    configs = [entry(each[0], each[2] if len(each) == 3 else None) for each in entries]
    return [each.destination for each in place_artifacts(configs, [each[1] for each in entries])]


@pytest.mark.parametrize(
    ("levels", "wanted"),
    [
        ((["/a"], ["/b"], ["/c"]), [LOGS_ARTIFACTS, "/a", "/b", "/c"]),
        (([], [], []), [LOGS_ARTIFACTS]),
        ((["/a"], ["/a"], []), [LOGS_ARTIFACTS, "/a", "/a"]),
        ((["/a"], [LOGS_ARTIFACTS], []), ["/a", LOGS_ARTIFACTS]),
        (([], [], [f"{LOGS_ARTIFACTS}/"]), [f"{LOGS_ARTIFACTS}/"]),
        (([f"{LOGS_ARTIFACTS}/x"], [], []), [LOGS_ARTIFACTS, f"{LOGS_ARTIFACTS}/x"]),
    ],
)
def test_a_pass_has_the_implicit_directory_then_task_trial_step(levels: Sequence[Sequence[str]], wanted: list[str]) -> None:
    task, trial, step = ([entry(source) for source in level] for level in levels)
    assert [each.source for each in pass_entries(task, trial, step)] == wanted


@pytest.mark.parametrize(
    ("entries", "wanted"),
    [
        # an entry without a destination is stored under the base name of its source
        ([("/app/greet.sh", FILE)], ["greet.sh"]),
        ([("/app/src/", ["", "a", "b/c"])], ["src"]),
        ([("relative/x.txt", FILE)], ["x.txt"]),
        ([("/", ["", "etc/hosts"])], ["root"]),
        ([(LOGS_ARTIFACTS, ["", "x", "d/y"])], [""]),
        ([("/app/x", FILE, "sub/y")], ["sub/y"]),
        ([("/app/x", FILE, "sub/")], ["sub"]),
        ([(LOGS_ARTIFACTS, ["", "x"], "published")], ["published"]),
        # if the base name is taken, the source's full path is used (b/x); if that is taken, too, it gets a number in front (2/b/x)
        ([("/a/x", FILE), ("/b/x", FILE)], ["x", "b/x"]),
        ([("/a/x", FILE), ("/b/x", FILE), ("/c/x", FILE, "c/x"), ("/c/x/", FILE)], ["x", "b/x", "c/x", "2/c/x"]),
        ([("/b/x", FILE, "b"), ("/a/b", FILE), ("/b", FILE)], ["b", "a/b", "2/b"]),
        (
            [("/a", FILE, "x"), ("/b", FILE, "c/x"), ("/d", FILE, "2/c/x"), ("/c/x", FILE)],
            ["x", "c/x", "2/c/x", "3/c/x"],
        ),
        ([("/a/d", ["", "x"]), ("/b/d", ["", "y"])], ["d", "b/d"]),  # two directories with one base name are not merged
        ([("/a/d", ["", "x"]), ("/x", FILE, "d/y")], ["d", "x"]),  # no entry is stored inside another entry's directory
        ([("/x", FILE, "d/y"), ("/a/d", ["", "z"])], ["d/y", "a/d"]),
        ([("/x", FILE, "d/y"), ("/a/d", FILE)], ["d/y", "a/d"]),  # a file cannot replace a directory that another entry needs
        ([(LOGS_ARTIFACTS, ["", "x"]), ("/app/x", FILE)], ["", "app/x"]),
        ([(LOGS_ARTIFACTS, ["", "x"]), ("/app/y", FILE)], ["", "y"]),
        ([(LOGS_ARTIFACTS, ["", "d", "d/x"]), ("/app/d", ["", "y"])], ["", "app/d"]),
        ([("/app/x", FILE), (LOGS_ARTIFACTS, ["", "x"])], ["x", "logs/artifacts"]),
        ([("/app/x", FILE), (LOGS_ARTIFACTS, ["", "y"])], ["x", ""]),
        # entries with the same source are stored at the same path, unless their destinations differ
        ([("/a/x", FILE), ("/a/x", FILE)], ["x", "x"]),
        ([("/a/x", FILE), ("/a/x", FILE, "y")], ["x", "y"]),
        ([("/b/x", FILE), ("/a/x", FILE), ("/b/x", FILE), ("/a/x", FILE)], ["x", "a/x", "x", "a/x"]),
        # a missing source reserves no path
        ([("/a/x", ()), ("/b/x", FILE)], ["x", "x"]),
        ([("/b/x", FILE), ("/a/x", ())], ["x", "a/x"]),
    ],
)
def test_places(entries: list[Entry], wanted: list[str]) -> None:
    assert places(*entries) == wanted


def test_a_source_twice_with_other_excludes_overwrites_no_other_entry() -> None:
    entries = [entry(LOGS_ARTIFACTS, None, "*.log"), entry("/app/x.log"), entry(LOGS_ARTIFACTS)]
    found = [["", "a"], [""], ["", "a", "x.log"]]
    assert [each.destination for each in place_artifacts(entries, found)] == ["", "x.log", "logs/artifacts"]


NAMES = st.sampled_from(["a", "b", "x", "root"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
SOURCES = st.sampled_from(["/", "/a", "/b", "/a/x", "/b/x", "/b/a", "/2", LOGS_ARTIFACTS, f"{LOGS_ARTIFACTS}/a"])


def tree(files: list[str]) -> tuple[str, ...]:
    """Return the paths that exist after writing these files to an empty directory. Files below another file are not written."""
    found: dict[str, None] = {"": None}
    taken: set[str] = set()
    for path in files:
        above = [str(each) for each in PurePosixPath(path).parents][:-1]
        if path not in found and not taken & set(above):
            found.update(dict.fromkeys([*reversed(above), path]))
            taken.add(path)
    return tuple(found)


TREES = st.just(()) | st.just(FILE) | st.lists(PATHS, min_size=1, max_size=3).map(tree)
DESTINATIONS = st.none() | PATHS
GIVEN = st.tuples(SOURCES, DESTINATIONS, TREES).map(
    # /logs/artifacts without a destination is stored as the step's artifacts directory itself, so it must be a directory. If a file
    # was drawn for it, use a directory that contains the file "artifacts" instead.
    lambda each: (each[0], each[1], ("", "artifacts")) if each[:2] == (LOGS_ARTIFACTS, None) and each[2] == FILE else each
)


@given(st.lists(GIVEN, max_size=6))
def test_no_two_sources_share_a_path_and_nothing_is_overwritten(given: list[tuple[str, str | None, tuple[str, ...]]]) -> None:
    entries = [entry(source, destination) for source, destination, _ in given]
    files: dict[str, str] = {}
    directories: dict[str, set[str]] = {}
    placements = place_artifacts(entries, [found for _, _, found in given])
    assert [each.entry for each in placements] == entries
    for placement, (source, _, found) in zip(placements, given, strict=True):
        for path in found:
            here = str(PurePosixPath(placement.destination, path))
            above = [str(each) for each in PurePosixPath(here).parents][:-1]
            if any(each != path and (path == "" or each.startswith(f"{path}/")) for each in found):
                above.append(here)
            else:
                assert files.setdefault(here, source) == source, f"{here}: of {files[here]} and of {source}"
            for each in above:
                directories.setdefault(each, set()).add(source)
    for path in files.keys() & directories.keys():
        assert directories[path] == {files[path]}, f"{path}: a file of {files[path]}, a directory of {directories[path]}"


@given(st.lists(GIVEN, max_size=5))
def test_places_are_relative_and_never_lead_out(given: list[tuple[str, str | None, tuple[str, ...]]]) -> None:
    for placement in place_artifacts([entry(s, d) for s, d, _ in given], [found for _, _, found in given]):
        assert not placement.destination.startswith("/")
        assert ".." not in placement.destination.split("/")


def test_the_manifest_has_a_line_per_entry() -> None:
    entries = [
        entry(LOGS_ARTIFACTS),
        entry("/app/d", None, "*.log"),
        entry("/app/x.txt", None, "*.log"),
        ArtifactConfig(source="/app/gone", service="main"),
        entry("/dev/null"),
    ]
    placements = [Placement(each, name) for each, name in zip(entries, ["", "d", "x.txt", "gone", "null"], strict=True)]
    lines = artifacts_manifest(placements, ["directory", "directory", "file", "missing", "other"])
    assert [tuple(line.values()) for line in lines] == [
        (LOGS_ARTIFACTS, "artifacts", "directory", "ok", None, []),
        ("/app/d", "artifacts/d", "directory", "ok", None, ["*.log"]),
        ("/app/x.txt", "artifacts/x.txt", "file", "ok", None, []),
        ("/app/gone", "artifacts/gone", "file", "failed", None, []),
        ("/dev/null", "artifacts/null", "file", "failed", None, []),
    ]
    assert list(lines[0]) == ["source", "destination", "type", "status", "service", "exclude"]


class Counted:
    """Paths that count how many of them were read."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = paths
        self.read = 0

    def __iter__(self) -> Iterator[str]:
        for path in self._paths:
            self.read += 1
            yield path


def test_an_agent_cannot_make_the_search_for_a_free_place_long() -> None:
    """The agent chooses the files in /logs/artifacts, which take the places of other entries. Few threads unpack for all trials."""
    taken = ["", "data", "app/data", *(f"{number}/app/data" for number in range(2, 1000))]
    files = Counted(["", *map(str, range(1000))])
    assert place_artifacts([entry(LOGS_ARTIFACTS), entry("/app/data")], [taken, files])[1].destination == "1000/app/data"
    assert files.read < 5000
