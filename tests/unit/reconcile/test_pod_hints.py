"""Test how long an unready pod waits for its next exec session."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from multistep.reconcile.trial.pod_hints import PodHint, PodHints


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


OWN, OTHER = ("default", "t"), ("default", "other")


def hints_of_two(node: str = "n") -> tuple[PodHints, PodHint, PodHint]:
    """Return hints, that of a pod on node n, and that of another trial's pod. node: of the other."""
    hints = PodHints()
    own, other = hints.of(OWN, "u"), hints.of(OTHER, "v")
    own.node, other.node = "n", node
    return hints, own, other


def lose(hints: PodHints, hint: PodHint, *times: float, answered: bool = False) -> None:
    """Let sessions with a pod break at these times. answered: after the runner answered."""
    for at in times:
        hint.answered, hint.read_at_deadline = answered, True
        if answered:
            hints.runner_answered(hint, at)
        hints.session_lost(hint, "broken", at)


AN_HOUR = [900.0 * number for number in range(5)]
AFTER = [3700.0 + 30 * number for number in range(5)]


def test_after_an_outage_each_pod_gets_another_session_before_it_is_judged() -> None:
    """Regression: the first trial that reconnected made the operator end all others of its node with the score 0."""
    hints, own, other = hints_of_two()
    lose(hints, own, *AN_HOUR)
    lose(hints, other, *AN_HOUR)
    hints.worked(other, 3650.0)
    assert (hints.is_unresponsive(own), hints.breaks_sessions(own), hints.node_works(own)) == (False, False, None)
    lose(hints, own, *AFTER[:-1])
    assert (hints.is_unresponsive(own), hints.breaks_sessions(own), hints.node_works(own)) == (False, False, None)
    lose(hints, own, AFTER[-1])
    assert (hints.is_unresponsive(own), hints.breaks_sessions(own), hints.node_works(own)) == (True, True, True)


def test_after_its_node_recovers_each_pod_gets_another_session_though_other_nodes_worked_all_along() -> None:
    hints, own, other = hints_of_two()
    elsewhere = hints.of(("default", "third"), "w")
    for at in AN_HOUR:
        lose(hints, own, at)
        lose(hints, other, at)
        hints.worked(elsewhere, at + 1)
    lose(hints, own, 3700.0)
    assert (hints.is_unresponsive(own), hints.node_works(own)) == (True, False)
    hints.worked(other, 3750.0)
    assert not hints.is_unresponsive(own)


def test_a_session_in_which_the_runner_answered_shows_that_the_pod_does_not_break_sessions() -> None:
    """Regression: sessions that ended at exec_session_seconds, or whose downloads a proxy cut, counted against the agent."""
    hints, own, other = hints_of_two()
    for at in [*AN_HOUR, *AFTER]:
        hints.worked(other, at + 1)
        lose(hints, own, at, answered=True)
    assert (hints.is_unresponsive(own), hints.node_works(own)) == (False, None)
    lose(hints, own, 4 * 3600.0, answered=True)
    assert (hints.is_unresponsive(own), hints.node_works(own), own.breaks_alone) == (True, None, False), "but not for ever"


def test_a_session_that_did_not_break_ends_the_series_though_its_result_was_not_stored() -> None:
    hints, own, other = hints_of_two()
    hints.worked(other, 3600.0)
    lose(hints, own, *AN_HOUR)
    hints.did_not_break(own, 3650.0)
    lose(hints, own, *AFTER)
    assert not hints.is_unresponsive(own) and own.lost.first == AFTER[0]


def test_what_other_pods_showed_stays_known_when_their_trials_end() -> None:
    """Regression: the last trial of a cluster could break its sessions for ever, as nothing showed any more that others worked."""
    hints, own, other = hints_of_two()
    lose(hints, own, 0.0)
    hints.worked(other, 1.0)
    hints.forget(OTHER)
    lose(hints, own, *AN_HOUR[1:], *AFTER)
    assert hints.is_unresponsive(own) and hints.node_works(own)
    hints, own, other = hints_of_two()
    lose(hints, other, 0.0)
    hints.forget(OTHER)
    lose(hints, own, *AN_HOUR)
    assert hints.node_works(own) is False


def test_while_no_session_works_anywhere_a_pod_is_waited_for_four_hours() -> None:
    hints, own, _ = hints_of_two()
    lose(hints, own, *AN_HOUR, 4 * 3600.0 - 1)
    assert not hints.is_unresponsive(own)
    lose(hints, own, 4 * 3600.0)
    assert hints.is_unresponsive(own) and not own.breaks_alone


@pytest.mark.parametrize(("node", "broke", "works"), [("n", None, None), ("n", 4.0, None), ("n", 5.0, False), ("other", 5.0, None)])
def test_sessions_with_other_pods_of_the_node_show_whether_it_works(node: str, broke: float | None, works: bool | None) -> None:
    hints, own, other = hints_of_two(node)
    hints.worked(own, 5.0)
    lose(hints, own, 10.0)
    if broke is not None:
        lose(hints, other, broke)
    assert hints.node_works(own) is works


def test_sessions_break_in_a_row_only_if_none_between_them_worked() -> None:
    hints, own, _ = hints_of_two()
    for number in range(100):
        lose(hints, own, 100.0 * number)
        assert not hints.breaks_sessions(own)
        own.read_at_deadline = True
        own.was_not_read("refused")
        assert not own.cannot_be_read
        hints.worked(own, 100.0 * number)


@pytest.mark.parametrize(("times", "broken"), [([0, 50, 100, 150], 0), ([0, 50, 100, 150, 200], 1), (range(90), 0), (range(91), 1)])
def test_a_pod_breaks_sessions_if_at_least_five_break_for_90_seconds(times: Sequence[int], broken: bool) -> None:
    hints, own, _ = hints_of_two()
    lose(hints, own, *times)
    assert hints.breaks_sessions(own) == broken
