"""Test that a sweep creates and counts each of its trials once, within the concurrency limit."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multistep.engine.sweep.next_trials import Halt, SweepLimits, TrialFacts, count_trials, halt_reason, numbers_to_create
from multistep.engine.sweep.trial_grid import Order, TrialCell, TrialGrid

NOW = 1_700_000_000.0
GRID = TrialGrid(["hello", "world"], ["oracle", "nop", "mine"], 2)
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=80)  # names of tasks and agents
GRIDS = st.builds(
    TrialGrid,
    st.lists(NAMES, min_size=1, max_size=4, unique=True),
    st.lists(NAMES, min_size=1, max_size=3, unique=True),
    st.integers(1, 4),
    st.sampled_from(["Attempts", "Tasks"]),
)


@given(GRIDS)
def test_every_task_meets_every_agent_as_often_as_asked(grid: TrialGrid) -> None:
    cells = {grid.cell(number) for number in range(len(grid))}
    attempts = range(1, grid.attempts + 1)
    assert cells == {TrialCell(t, a, n) for t in range(len(grid.tasks)) for a in range(len(grid.agents)) for n in attempts}


@pytest.mark.parametrize(
    ("order", "first"),
    [
        ("Attempts", [TrialCell(0, 0, 1), TrialCell(0, 1, 1), TrialCell(0, 2, 1), TrialCell(1, 0, 1)]),
        ("Tasks", [TrialCell(0, 0, 1), TrialCell(0, 0, 2), TrialCell(0, 1, 1), TrialCell(0, 1, 2)]),
    ],
)
def test_the_order_shows_what_comes_first(order: Order, first: list[TrialCell]) -> None:
    grid = replace(GRID, order=order)
    assert [grid.cell(number) for number in range(4)] == first


@given(GRIDS, st.from_regex(r"[a-z0-9]([-a-z0-9]{0,70}[a-z0-9])?", fullmatch=True))
def test_names_of_trials_are_labels_and_unique(grid: TrialGrid, sweep: str) -> None:
    names = [grid.trial_name(sweep, number) for number in range(len(grid))]
    assert len(set(names)) == len(names)
    for name in names:
        assert len(name) <= 63
        assert name.strip("-").replace("-", "").isalnum() and name.isascii() and name == name.lower().strip("-")


def test_names_of_trials_can_be_read() -> None:
    assert GRID.trial_name("nightly", 5).startswith("nightly-world-mine-1-")


def test_the_tally_keeps_apart_what_counts_and_what_was_lost() -> None:
    trials = [
        TrialFacts(0, "Complete", score=1.0, pod_seconds=1800),
        TrialFacts(3, "Complete", score=0.0, pod_seconds=1800),
        TrialFacts(1, "Failed", failure_class="Infrastructure"),
        TrialFacts(2, "Failed", failure_class="Agent", score=0.0),
        TrialFacts(5, "Complete"),
        TrialFacts(4, "Active", pod_seconds=1800, since=NOW - 1800, phase="Running", stop=True),
    ]
    found = count_trials(GRID, 8, trials, NOW)
    assert (found.total, found.created, found.active, found.complete, found.failed, found.deleted) == (12, 8, 1, 3, 2, 2)
    assert found.phases == {"Running": 1} and found.stopped
    assert (found.excluded, found.scored) == ({"Infrastructure": 1, "Task": 1}, {"Agent": 1})
    assert [found.failures(each) for each in ("Infrastructure", "Agent", "Verifier")] == [1, 1, 0]
    assert found.pod_hours == 2
    assert [(each.counted, each.finished, each.mean) for each in found.agents] == [(2, 2, 0.5), (0, 1, None), (1, 2, 0.0)]
    assert not found.all_finished


def test_in_an_agents_mean_every_task_weighs_the_same_however_many_of_its_trials_count() -> None:
    found = count_trials(
        GRID, 12, [TrialFacts(number, "Complete", score=reward) for number, reward in ((0, 1.0), (6, 1.0), (3, 0.0))], NOW
    )
    assert (found.agents[0].counted, found.agents[0].mean) == (3, 0.5)


def test_a_sweep_is_finished_when_all_were_created_and_none_is_at_work() -> None:
    done = [TrialFacts(number, "Complete", score=1.0) for number in range(12)]
    assert count_trials(GRID, 12, done, NOW).all_finished
    assert not count_trials(GRID, 12, [*done[1:], TrialFacts(0, "Active")], NOW).all_finished
    assert count_trials(GRID, 12, done[1:], NOW).all_finished


def test_trials_that_are_there_were_created_whatever_the_status_is() -> None:
    counts = count_trials(GRID, 0, [TrialFacts(0, "Active"), TrialFacts(2, "Active")], NOW)
    assert (counts.created, counts.deleted) == (3, 1)
    assert numbers_to_create(counts, SweepLimits(4)) == range(3, 5)


def test_each_limit_halts_the_sweep_with_its_reason() -> None:
    counts = count_trials(
        GRID, 3, [TrialFacts(n, "Failed", failure_class="Infrastructure", pod_seconds=3600) for n in range(3)], NOW
    )
    fine = SweepLimits(5, pod_hours=4, failures={"Infrastructure": 3}, deadline=100)
    assert halt_reason(counts, fine, 99) is None
    assert halt_reason(counts, SweepLimits(5), 1e12) is None
    assert halt_reason(counts, replace(fine, pod_hours=3), 99) == Halt(
        "BudgetSpent", "the trials have used 3.00 pod-hours, and the budget is 3"
    )
    assert halt_reason(counts, replace(fine, failures={"Task": 0, "Infrastructure": 2}), 99) == Halt(
        "TooManyFailures", "3 trials had a failure of class Infrastructure; spec.stopWhen.failures tolerates 2"
    )
    assert halt_reason(counts, replace(fine, stop=True), 99) == Halt("Stopped", "spec.stop is true")
    assert halt_reason(counts, fine, 100) == Halt(
        "DeadlineExceeded", "the sweep was active for longer than spec.activeDeadlineSeconds"
    )


@given(GRIDS, st.integers(1, 7), st.data())
def test_a_sweep_that_dies_anywhere_makes_each_trial_once_and_never_too_many_at_once(
    grid: TrialGrid, parallelism: int, data: st.DataObject
) -> None:
    cluster: dict[str, TrialFacts] = {}
    creations, made = 0, 0
    for _ in range(200):
        counts = count_trials(grid, made, list(cluster.values()), NOW)
        if counts.all_finished:
            break
        for number in numbers_to_create(counts, SweepLimits(parallelism)):
            name = grid.trial_name("s", number)
            if name not in cluster:  # the API server rejects a second object with this name
                cluster[name], creations = TrialFacts(number, "Active"), creations + 1
            assert sum(each.state == "Active" for each in cluster.values()) <= parallelism
            if data.draw(st.booleans(), label="dies"):
                break
        else:
            made = numbers_to_create(counts, SweepLimits(parallelism)).stop
        active = [name for name, each in cluster.items() if each.state == "Active"]
        for name in data.draw(st.lists(st.sampled_from(active), unique=True) if active else st.just([]), label="end"):
            cluster[name] = replace(cluster[name], state="Complete", score=1.0)
    assert creations <= len(grid)
