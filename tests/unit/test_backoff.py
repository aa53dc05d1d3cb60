"""Backoff: the pauses before retries."""

from __future__ import annotations

import pytest

from multistep.backoff import Backoff


def test_pauses_double_with_each_failure_up_to_the_longest() -> None:
    backoff = Backoff(first=0.5, last=5.0)
    assert [backoff.seconds(failures) for failures in range(7)] == [0.5, 0.5, 1.0, 2.0, 4.0, 5.0, 5.0]


def test_any_number_of_failures_has_a_pause() -> None:
    assert Backoff(first=1.0, last=60.0).seconds(10_000) == 60.0


@pytest.mark.parametrize("failures", [1, 4, 20])
def test_jitter_makes_a_pause_longer_by_at_most_its_fraction(failures: int) -> None:
    least = Backoff(first=1.0, last=8.0).seconds(failures)
    found = {Backoff(first=1.0, last=8.0, jitter=0.25).seconds(failures) for _ in range(200)}
    assert least <= min(found) and max(found) <= 1.25 * least and len(found) > 100
