"""Test how long an unready pod waits for its next exec session."""

from __future__ import annotations

import pytest

from multistep.reconcile.trial.owned_pods import PodHint, PodHints


@pytest.mark.parametrize(("poll", "longest"), [(300.0, 60.0), (20.0, 20.0)])
def test_sessions_that_find_nothing_pause_longer_each_time_up_to_a_minute(poll: float, longest: float) -> None:
    hint = PodHint("uid")
    pauses = [hint.phase_runs(0.0, poll, ready=False, found_nothing=True) for _ in range(5)]
    assert pauses == [min(longest, each) for each in (10.0, 20.0, 40.0, 60.0, 60.0)]
    assert (hint.quiet_until, hint.unready_until) == (poll, longest)


def test_after_a_session_that_found_a_result_the_pauses_are_short_again() -> None:
    hint = PodHint("uid", empty_sessions=3)
    assert hint.phase_runs(0.0, 300.0, ready=False, found_nothing=False) == 5.0
    assert (hint.empty_sessions, hint.unready_until) == (0, 0.0)


def test_a_probe_that_fails_for_days_raises_no_error() -> None:
    """Regression: after 1,024 sessions (in 17 hours), the pause was too large for a float, and each reconcile failed."""
    hint = PodHint("uid", empty_sessions=5000)
    assert hint.phase_runs(0.0, 300.0, ready=False, found_nothing=True) == 60.0


@pytest.mark.parametrize(
    ("other", "works"),
    [
        (PodHint("o", node="n"), None),
        (PodHint("o", node="n", worked_at=9.0), None),
        (PodHint("o", node="n", lost_since=5.0, worked_at=4.0), False),
        (PodHint("o", node="n", lost_since=5.0, worked_at=11.0), True),
        (PodHint("o", node="n", worked_at=11.0), True),
        (PodHint("o", node="other", worked_at=11.0), None),
        (PodHint("o", node="other", lost_since=5.0), None),
    ],
)
def test_sessions_with_other_pods_of_the_node_show_whether_it_works(other: PodHint, works: bool | None) -> None:
    hints = PodHints()
    own, hints._by_trial["default", "other"] = hints.of(("default", "t"), "u"), other
    own.node = "n"
    own.session_lost("broken", 10.0)
    assert hints.node_works(own) is works


def lost(hint: PodHint, at: float) -> bool:
    hint.read_at_deadline = True
    hint.session_lost("broken", at)
    return hint.breaks_sessions(at)


def test_sessions_break_in_a_row_only_if_none_between_them_worked() -> None:
    hint = PodHint("u")
    for number in range(100):
        assert not lost(hint, 100.0 * number)
        hint.read_at_deadline = True
        hint.was_not_read("refused")
        assert not hint.cannot_be_read
        hint.worked(100.0 * number)


def test_a_pod_breaks_sessions_if_at_least_five_break_for_90_seconds() -> None:
    hint, often = PodHint("u"), PodHint("v")
    assert [lost(hint, each) for each in (0.0, 50.0, 100.0, 150.0, 200.0)] == [False] * 4 + [True]
    assert not any(lost(often, each) for each in range(90)) and lost(often, 90.0)
