"""Test that the commands of each document can be parsed, and that every relative link in a document has a target."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.docs import pages

OTHERS = (
    *("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"),
    *("localkube/README.md", "runner/README.md", "skills/create-task/SKILL.md", "tests/conformance/README.md"),
)  # documents whose commands the tests do not run

read = cache(pages.read)  # cached, because hundreds of links lead to a few pages


@pytest.mark.parametrize("path", pages.paths(), ids=lambda path: str(path.relative_to(pages.ROOT)))
def test_every_block_of_a_page_shows_what_it_is(path: Path) -> None:
    read(path)


@pytest.mark.parametrize("name", [*(str(path.relative_to(pages.ROOT)) for path in pages.paths()), *OTHERS])
def test_relative_links_and_anchors_lead_somewhere(name: str) -> None:
    page = read(pages.ROOT / name)
    assert [f"{name}:{line}: {link}" for line, link in page.links if not leads_somewhere(page, link)] == []


def leads_somewhere(page: pages.Page, link: str) -> bool:
    """Return whether the file that a relative link names exists and, if it is a Markdown file, has the link's anchor."""
    parts = urlsplit(link)
    target = (page.path.parent / unquote(parts.path)).resolve() if parts.path else page.path
    if not target.exists():
        return False
    return not parts.fragment or target.suffix != ".md" or parts.fragment in read(target).anchors


def test_every_document_is_in_the_index() -> None:
    index = pages.ROOT / "docs" / "README.md"
    linked = {(index.parent / urlsplit(link).path).resolve() for _, link in read(index).links}
    documents = {path for path in pages.paths() if path.is_relative_to(index.parent) and path != index}
    assert documents - linked == set()
