"""Symbolic links of a task's bundle are followed within the bundle, and never outside of it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multistep.errors import InvalidTask
from multistep.sources.task import bundle_links

from .trees import tree

PARTS = st.lists(st.sampled_from(["a", "b", "..", ".", "c"]), min_size=1, max_size=4).map("/".join)


@pytest.mark.parametrize(
    ("path", "real"),
    [("d/f", "d/f"), ("l", "d"), ("l/f", "d/f"), ("d/up/l/f", "d/f"), ("d/up", ""), ("none/x", "none/x"), ("dang", "q")],
)
def test_paths_are_resolved(path: str, real: str) -> None:
    assert bundle_links.resolve_links(tree({"d/f": "x", "l": "-> d", "d/up": "-> ..", "dang": "-> q"}), path) == real


@pytest.mark.parametrize("target", ["/etc", "..", "d/../..", "../x", "me", "you"])
def test_links_that_lead_nowhere_good(target: str) -> None:
    with pytest.raises(InvalidTask, match="leads") as caught:
        bundle_links.resolve_links(tree({"d/f": "x", "me": f"-> {target}", "you": "-> me"}), "me")
    assert caught.value.kind == "ValueError"


@given(st.dictionaries(st.sampled_from(["a", "b", "c"]), PARTS, max_size=3), PARTS)
def test_links_are_followed_as_an_operating_system_does(found: dict[str, str], path: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name).resolve() / "root"
        root.mkdir()
        for link, target in found.items():
            (root / link).symlink_to(target)
        try:
            real = bundle_links.resolve_links(tree({link: f"-> {target}" for link, target in found.items()}), path)
        except InvalidTask:
            return
        assert os.path.realpath(root / path) == str(root / real)


def test_a_circle_of_directories_is_found() -> None:
    with pytest.raises(InvalidTask, match="form a circle"):
        bundle_links.check_tree(tree({"tests/d/back": "-> .."}), "tests", lambda _: False)


def test_two_ways_to_one_directory_are_no_circle() -> None:
    bundle_links.check_tree(tree({"tests/d/f": "x", "tests/l": "-> d", "tests/m": "-> d"}), "tests", lambda _: False)


def test_links_cannot_make_the_walk_endless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle_links, "_MAX_VISITS", 2_000)  # of the 2**40 paths; each takes time
    files = {f"tests/{n}/{side}": f"-> ../{n + 1}" for n in range(40) for side in "lr"}
    with pytest.raises(InvalidTask, match="too many paths"):
        bundle_links.check_tree(tree({**files, "tests/40/f": "x"}), "tests/0", lambda _: False)


def test_what_is_excluded_may_lead_anywhere() -> None:
    bundle_links.check_tree(tree({"tests/l": "-> /etc/passwd"}), "tests", lambda path: path == "tests/l")


def test_a_path_longer_than_linux_allows_is_refused() -> None:
    bundle = tree({"tests/a": "-> " + "b/" * 3000})
    with pytest.raises(InvalidTask, match="more than 4096 characters"):
        bundle_links.resolve_links(bundle, "tests/a")
