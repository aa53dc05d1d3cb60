"""The table of keys in docs/reference/compose.md equals the compose reader's own table."""

from __future__ import annotations

from pathlib import Path

from hack.generate.compose_page import PAGE, with_table


def test_the_table_of_keys_is_current() -> None:
    page = (Path(__file__).parents[2] / PAGE).read_text()
    assert with_table(page) == page, "run: make generate"
