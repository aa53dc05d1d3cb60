"""Tests that try each call of an operator as the point of a fault: in part in each run, and as a whole in the long tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import pytest

T = TypeVar("T")

in_part_or_whole = pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.long)], ids=["part", "whole"])


def tried(points: Sequence[T], whole: bool, *, every: int, first: int = 0) -> Sequence[T]:
    """Return all points or, of the short form, every so-manieth one. first: a number by which tests differ, so that together they
    try most points."""
    chosen = points if whole else points[first % min(every, len(points)) :: every]
    assert chosen, "no point to try"
    return chosen
