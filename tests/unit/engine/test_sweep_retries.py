"""Retries of a sweep: whether the original trial or one of its retries counts, and when a finished sweep continues."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multistep.api.sweep.sweep import SweepStatus, TrialSweep
from multistep.api.trial.status import is_finished
from multistep.engine.sweep import sweep_status
from multistep.engine.sweep.next_sweep_action import next_sweep_action, reopens
from multistep.engine.sweep.next_trials import TrialFacts, count_trials, trials_that_count
from multistep.engine.sweep.trial_grid import Retry, TrialCell, TrialGrid, retries_of, unknown_numbers
from multistep.engine.sweep.trial_manifests import RegradedSweep, SweepPlan, retry_of, trial_manifest

from .test_sweep_status import NOW, done, plan_of, started, sweep

GRID = TrialGrid(["t", "u"], ["a"], 2)
LOST = TrialFacts(1, "Failed", failure_class="Infrastructure")


def with_retries(*numbers: int) -> TrialGrid:
    return replace(GRID, retries=retries_of(numbers, GRID.total))


def finished(trials: list[TrialFacts], **spec: Any) -> TrialSweep:
    """Return a sweep that finished at generation 1 and whose spec was then changed to ``spec``, so it has generation 2."""
    found = started()
    status = next_sweep_action(found, plan_of(found), 4, trials, NOW + 10).status
    assert is_finished(status)
    return sweep(status, generation=2, **spec)


def test_retries_are_counted_by_number_and_those_of_no_trial_are_left_out() -> None:
    assert retries_of([1, 9, 0, 1], 4) == [Retry(1, 1), Retry(0, 1), Retry(1, 2)]
    assert unknown_numbers([1, 9, 0, 4], 4) == [9, 4]


def test_a_retry_is_numbered_after_all_others_and_is_the_same_cell_again() -> None:
    grid = with_retries(1, 1)
    assert (grid.total, len(grid)) == (4, 6)
    assert [grid.cell(number) for number in (4, 5)] == [TrialCell(1, 0, 1, retry=1), TrialCell(1, 0, 1, retry=2)]
    assert [grid.sweep_number(number) for number in (1, 4, 5)] == [1, 1, 1]
    names = {grid.trial_name("s", number) for number in range(len(grid))}
    assert len(names) == 6 and grid.trial_name("s", 4).startswith("s-u-a-1-r1-")


def test_more_retries_change_no_name_of_the_earlier_ones() -> None:
    few, more = with_retries(1), with_retries(1, 0, 1)
    assert [few.trial_name("s", number) for number in range(5)] == [more.trial_name("s", number) for number in range(5)]


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=20))
def test_a_number_counts_with_its_first_scored_trial_else_with_the_newest(trials: list[tuple[int, bool]]) -> None:
    found = trials_that_count([(number, at, (at, scored)) for at, (number, scored) in enumerate(trials)], lambda each: each[1])
    assert found.keys() == {number for number, _ in trials}
    for number, (at, _) in found.items():
        own = [(index, scored) for index, (its, scored) in enumerate(trials) if its == number]
        assert at == next((index for index, scored in own if scored), own[-1][0])


def test_the_tally_counts_each_number_once() -> None:
    trials = [*done(0, 2, 3), LOST, *done(4, reward=0.5)]
    counts = count_trials(with_retries(1), 5, trials, NOW)
    assert (counts.total, counts.created, counts.complete, counts.failed, counts.counted, counts.deleted) == (4, 4, 4, 0, 4, 0)
    assert (counts.retries, counts.retried, counts.all_finished, counts.pod_hours) == (1, 1, True, 4.0)
    assert counts.agents[0].counted == 4


def test_a_number_whose_retry_is_due_has_not_finished_and_no_failure() -> None:
    counts = count_trials(with_retries(1), 4, [*done(0, 2, 3), LOST], NOW)
    assert (counts.complete, counts.failed, counts.failures("Infrastructure"), counts.all_finished) == (3, 0, 0, False)
    scored = count_trials(with_retries(0), 4, [*done(0, 2, 3), LOST], NOW)
    assert (scored.complete, scored.failed) == (3, 1)


def test_a_deleted_retry_leaves_the_number_as_it_was_before() -> None:
    counts = count_trials(with_retries(1), 5, [*done(0, 2, 3), LOST], NOW)
    assert (counts.failed, counts.deleted, counts.failures("Infrastructure"), counts.all_finished) == (1, 0, 1, True)


def test_an_active_retry_takes_a_slot() -> None:
    counts = count_trials(with_retries(1), 5, [*done(0, 2, 3), LOST, TrialFacts(4, "Active")], NOW)
    assert (counts.active, counts.complete, counts.failed, counts.all_finished) == (1, 3, 0, False)


def test_a_finished_sweep_continues_when_it_gets_retries() -> None:
    trials = [*done(0, 2, 3), LOST]
    found = finished(trials, retries=[1])
    assert reopens(found)
    status = sweep_status.reopened_status(found, NOW + 100)
    assert (status.phase, status.completion_time, status.suspended_seconds) == ("Running", None, 90)
    assert status.conditions[0].message == "1 trial runs again"
    again = sweep(status, generation=2, retries=[1])
    after = next_sweep_action(again, plan_of(again), 4, trials, NOW + 100)
    assert (list(after.create), after.status.phase) == ([4], "Running")
    assert "4 of 4 trials were created, 0 of 1 retries were created" in after.status.conditions[0].message
    over = next_sweep_action(again, plan_of(again), 5, [*trials, *done(4)], NOW + 200).status
    assert (over.phase, over.trials.retried, over.trials.counted) == ("Complete", 1, 4)
    assert not reopens(sweep(over, generation=3, retries=[1]))


@pytest.mark.parametrize("spec", [{}, {"retries": []}, {"retries": [4]}])
def test_it_does_not_continue_without_retries_to_create(spec: dict[str, Any]) -> None:
    assert not reopens(finished(done(0, 1, 2, 3), **spec))


def test_it_continues_only_after_a_change_of_its_spec_and_only_if_it_ever_started() -> None:
    status = finished([*done(0, 2, 3), LOST]).status
    assert not reopens(sweep(status, generation=1, retries=[1]))
    failed = sweep_status.failed_status(sweep(), "InvalidSpec", "no", NOW)
    assert not reopens(sweep(failed, generation=2, retries=[1]))


def test_a_sweep_whose_end_is_unknown_continues_too() -> None:
    found = finished([*done(0, 2, 3), LOST], retries=[1])
    status = found.status.model_copy(update={"completion_time": None})
    assert sweep_status.reopened_status(sweep(status, generation=2, retries=[1]), NOW).suspended_seconds is None


def test_time_before_the_end_of_a_clock_that_was_wrong_counts_as_none() -> None:
    found = finished([*done(0, 2, 3), LOST], retries=[1])
    assert found.status.completion_time is not None
    later = found.status.completion_time + timedelta(hours=1)
    status = found.status.model_copy(update={"completion_time": later})
    assert sweep_status.reopened_status(sweep(status, generation=2, retries=[1]), NOW).suspended_seconds is None


def test_the_status_has_no_empty_maps_because_the_api_server_would_make_them_null() -> None:
    status = finished([*done(0, 2, 3), LOST]).status
    assert sweep_status.to_json(status)["excluded"] == {"Infrastructure": 1}
    over = next_sweep_action(started(), plan_of(started()), 4, done(0, 1, 2, 3), NOW).status
    assert {"excluded", "scoredFailures"}.isdisjoint(sweep_status.to_json(over))


def test_numbers_of_no_trial_are_named() -> None:
    found = sweep(SweepStatus(), retries=[7, 8])
    running = sweep(sweep_status.started_status(found, plan_of(found), NOW), retries=[7, 8])
    status = next_sweep_action(running, plan_of(running), 4, done(0, 1, 2, 3), NOW).status
    assert status.conditions[0].message == "4 of 4 trials count; the sweep has no trials 7, 8 of spec.retries"


def test_the_manifest_of_a_retry_names_the_number_for_which_it_counts() -> None:
    found = sweep(retries=[1])
    plan: SweepPlan = plan_of(found)
    first, again = trial_manifest(found, plan, 1), trial_manifest(found, plan, 4)
    assert (retry_of(first), retry_of(again)) == (None, 1)
    assert again["metadata"]["labels"]["multistep.dev/number"] == "4" and again["spec"] == first["spec"]


def test_the_retry_of_a_regrade_verifies_the_same_trial_again() -> None:
    found = sweep(retries=[1], regrade={"sweep": "source"})
    plan = plan_of(found)
    assert trial_manifest(found, plan, 4)["spec"]["regrade"] == trial_manifest(found, plan, 1)["spec"]["regrade"]


def test_a_regrade_verifies_the_retry_that_counts_in_the_source() -> None:
    found = sweep(retries=[1], regrade={"sweep": "source"})
    plan = replace(plan_of(found), source=RegradedSweep("u", {1: "source-retry"}))
    assert [trial_manifest(found, plan, number)["spec"]["regrade"]["trial"] == "source-retry" for number in range(5)] == [
        number in (1, 4) for number in range(5)
    ]
