""".harborignore works like .gitignore, but only in tests/ and solution/."""

from __future__ import annotations

import pytest

from multistep.errors import InvalidTask
from multistep.sources.task.bundle import Bundle, BundleEntry
from multistep.sources.task.task import IgnoreRules

from .trees import tree


@pytest.mark.parametrize(
    ("rules", "path", "excluded"),
    [
        ("*.log", "tests/a.log", True),
        ("*.log", "tests/d/a.log", True),
        ("/a.log", "tests/d/a.log", False),
        ("d/", "tests/d/a.log", True),
        ("d/", "tests/d", True),
        ("a.log/", "tests/a.log", False),
        ("*.log\n!a.log", "tests/a.log", False),
        ("d/\n!d/a.log", "tests/d/a.log", True),
        ("# *.log", "tests/a.log", False),
        ("*", "tests", False),
        ("*", "steps/a/tests/test.sh", False),
        ("", "tests/.harborignore", True),
        ("keep", "tests/l", True),
    ],
)
def test_rules(rules: str, path: str, excluded: bool) -> None:
    files = {"tests/.harborignore": rules, "tests/a.log": "", "tests/d/a.log": "", "tests/keep": "", "tests/l": "-> keep"}
    assert IgnoreRules(tree(files)).excludes(path) is excluded


def test_rules_are_inherited_and_the_lower_wins() -> None:
    rules = IgnoreRules(
        tree({"tests/.harborignore": "*.log", "tests/d/.harborignore": "!b.log", "tests/d/b.log": "", "tests/d/c.log": ""})
    )
    assert not rules.excludes("tests/d/b.log")
    assert rules.excludes("tests/d/c.log")


@pytest.mark.parametrize("place", ["", "steps/", "steps/a/", "steps/a/workdir/", "environment/"])
def test_rules_elsewhere_mean_nothing(place: str) -> None:
    rules = IgnoreRules(tree({f"{place}.harborignore": "*", f"{place}x": "", "tests/test.sh": ""}))
    assert not rules.excludes(f"{place}x")
    assert not rules.excludes("tests/test.sh")


def test_rules_of_a_step_hold_in_the_step() -> None:
    rules = IgnoreRules(tree({"steps/a/solution/.harborignore": "x", "steps/a/solution/x": "", "steps/b/solution/x": ""}))
    assert rules.excludes("steps/a/solution/x")
    assert not rules.excludes("steps/b/solution/x")


def test_rules_must_be_text() -> None:
    rules = IgnoreRules(
        Bundle.from_entries({"tests/.harborignore": BundleEntry("file", data=b"\xff"), "tests/a": BundleEntry("file")})
    )
    with pytest.raises(InvalidTask, match=r"tests/.harborignore: cannot be read"):
        rules.excludes("tests/a")
