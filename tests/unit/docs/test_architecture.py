"""Test that every module that docs/internals/architecture.md names exists."""

from __future__ import annotations

import re
from itertools import takewhile

import pytest

from tests.docs import pages

PAGE = pages.ROOT / "docs" / "internals" / "architecture.md"
PACKAGE = pages.ROOT / "operator" / "multistep"


def named(heading: str) -> list[str]:
    """Return the paths in the section with this heading."""
    section = PAGE.read_text().split(f"\n## {heading}\n")[1].splitlines()
    lines = takewhile(lambda line: not line.startswith("## "), section)
    paths = re.findall(r"`([a-z_/]+(?:\.py)?)`", "\n".join(line for line in lines if not line.startswith("Paths ")))
    return [path for path in paths if "/" in path or path == "egress"]


@pytest.mark.parametrize(("heading", "least"), [("Where is it decided?", 55), ("One trial in ten lines", 20)])
def test_every_named_module_exists(heading: str, least: int) -> None:
    paths = named(heading)
    assert len(paths) >= least, "the page's form changed, so that this test finds no paths"
    assert [path for path in paths if not (PACKAGE / path).exists() and not (pages.ROOT / path).exists()] == []
