"""Numbers of things in messages: "1 step", "2 steps"."""

from __future__ import annotations

import pytest

from multistep.api.common.plural import plural


@pytest.mark.parametrize(
    ("count", "words", "wanted"),
    [
        (1, ("step",), "1 step"),
        (0, ("step",), "0 steps"),
        (2, ("step",), "2 steps"),
        (1, ("trial runs", "trials run"), "1 trial runs"),
        (3, ("trial runs", "trials run"), "3 trials run"),
    ],
)
def test_only_one_is_singular(count: int, words: tuple[str, ...], wanted: str) -> None:
    assert plural(count, *words) == wanted
