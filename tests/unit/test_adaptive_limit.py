"""The adaptive concurrency limit: between 1 and its maximum, halved by refusals, raised by successes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from multistep.adaptive_limit import AdaptiveLimit


@given(st.integers(1, 500), st.lists(st.one_of(st.none(), st.integers(0, 10_000)), max_size=50))
def test_whatever_happens_the_limit_stays_between_1_and_its_maximum(most: int, events: list[int | None]) -> None:
    """events: None is a refusal, a number is a number of successes."""
    limit = AdaptiveLimit(most)
    for each in events:
        before = limit.allowed
        if each is None:
            lowered = limit.refused()
            assert limit.allowed <= before and (lowered or limit.allowed == 1)
        else:
            limit.succeeded(each)
            assert limit.allowed >= before
        assert 1 <= limit.allowed <= most


@given(st.integers(2, 500))
def test_enough_successes_undo_any_refusals(most: int) -> None:
    limit = AdaptiveLimit(most)
    while limit.refused():
        pass
    assert limit.allowed == 1
    limit.succeeded(most * most)
    assert limit.allowed == most


def test_as_many_successes_as_the_limit_raise_it_by_about_one() -> None:
    limit = AdaptiveLimit(64)
    limit.refused()
    for _ in range(33):
        limit.succeeded()
    assert limit.allowed == 33
