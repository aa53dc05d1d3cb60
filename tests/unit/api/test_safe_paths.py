"""Paths that lead out of the directory to which they are relative."""

from __future__ import annotations

import pytest

from multistep.api.common.safe_paths import goes_up, is_canonical, leads_out


@pytest.mark.parametrize(
    ("path", "up", "out", "canonical"),
    [
        ("a/b.txt", False, False, True),
        ("..a/b..", False, False, True),
        ("", False, False, False),
        ("./a", False, False, False),
        ("a//b", False, False, False),
        ("a/", False, False, False),
        ("/a", False, True, False),
        ("/a/../b", True, True, False),
        ("a/../b", True, True, False),
        ("..", True, True, False),
        ("a\0", False, True, False),
    ],
)
def test_a_path_that_goes_up_leads_out_and_one_that_leads_out_is_not_canonical(
    path: str, up: bool, out: bool, canonical: bool
) -> None:
    assert (goes_up(path), leads_out(path), is_canonical(path)) == (up, out, canonical)
