"""Test how long an unready pod waits for its next exec session."""

from __future__ import annotations

import pytest

from multistep.reconcile.pod_hints import PodHint, PodHints


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
    ("other", "blamed"),
    [
        (PodHint("o", node="n"), True),
        (PodHint("o", node="n", lost_since=5.0), False),
        (PodHint("o", node="n", lost_since=5.0, worked_at=11.0), True),
        (PodHint("o", node="n", lost_since=5.0, worked_at=4.0), False),
        (PodHint("o", node="other", lost_since=5.0), True),
    ],
)
def test_sessions_that_break_with_the_nodes_other_pods_too_show_that_the_node_is_the_cause(other: PodHint, blamed: bool) -> None:
    hints = PodHints()
    own, hints._by_trial["default", "other"] = hints.of(("default", "t"), "u"), other
    own.node = "n"
    own.session_lost("broken", 10.0)
    assert hints.node_breaks_sessions(own) is not blamed
