"""The gate's verdicts, its error rate and its power, on simulated sweeps."""

from __future__ import annotations

import random
from collections.abc import Sequence
from math import inf

import pytest

from multistep.report.gate import GateResult, Need, Verdict, judge, smallest_drop, too_small

TOLERANCE = 0.02
PAIRS = 1000


def sweep(chances: Sequence[float], attempts: int, seed: random.Random) -> dict[str, list[float]]:
    """Return the scores of a simulated sweep. chances: each task's chance to pass."""
    return {f"task-{index}": [float(seed.random() < chance) for _ in range(attempts)] for index, chance in enumerate(chances)}


def verdicts(tasks: int, attempts: int, drop: float = 0.0, max_drop: float = TOLERANCE, pairs: int = PAIRS) -> list[GateResult]:
    """Return the results of simulated gates. drop: by how much each task's chance to pass is lower for the candidate."""
    seed = random.Random(f"{tasks} {attempts} {drop} {max_drop}")
    found = []
    for _ in range(pairs):
        chances = [seed.betavariate(2, 2) * (1 - drop) + drop for _ in range(tasks)]
        candidate = sweep([chance - drop for chance in chances], attempts, seed)
        found.append(judge(candidate, sweep(chances, attempts, seed), max_drop))
    return found


def share(found: Sequence[GateResult], verdict: Verdict) -> float:
    return sum(each.verdict is verdict for each in found) / len(found)


@pytest.mark.parametrize(
    ("tasks", "attempts"),
    [(10, 5), *(pytest.param(*size, marks=pytest.mark.long) for size in [(6, 1), (30, 1), (30, 5), (100, 2)])],
)
def test_at_most_one_of_twenty_equal_candidates_is_called_worse_or_better(tasks: int, attempts: int) -> None:
    found = verdicts(tasks, attempts)
    assert share(found, Verdict.WORSE) <= 0.05
    assert share(found, Verdict.BETTER) <= 0.05


def test_a_candidate_that_is_worse_by_more_than_the_tolerance_seldom_passes() -> None:
    found = verdicts(60, 4, drop=0.08, pairs=300)
    assert share(found, Verdict.NO_WORSE) + share(found, Verdict.BETTER) <= 0.025


@pytest.mark.parametrize(("tasks", "attempts"), [(20, 4), (60, 2)])
def test_a_drop_of_the_stated_size_is_found_four_times_in_five(tasks: int, attempts: int) -> None:
    assert share(verdicts(tasks, attempts, drop=smallest_drop(tasks, attempts), pairs=300), Verdict.WORSE) >= 0.8


def test_the_attempts_that_a_gate_asks_for_suffice_four_times_in_five() -> None:
    needs = [each.need for each in verdicts(40, 4, max_drop=0.1, pairs=40) if each.need is not None]
    asked = sorted(each.attempts for each in needs if each.attempts is not None)
    assert asked
    again = verdicts(40, asked[len(asked) // 2], max_drop=0.1, pairs=300)
    assert share(again, Verdict.NO_WORSE) + share(again, Verdict.BETTER) >= 0.75


def test_more_attempts_do_not_help_if_the_difference_varies_between_tasks() -> None:
    candidate = {f"t{index}": [float(index % 2)] * 5 for index in range(8)}
    baseline = {f"t{index}": [float(index % 2 == 0)] * 5 for index in range(8)}
    need = judge(candidate, baseline, TOLERANCE).need
    assert need is not None
    assert need.attempts is None
    assert need.tasks is not None
    assert need.tasks > 8


def same(tasks: int, difference: float = 0.0) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Return scores of a candidate and of a baseline with the same difference in each task."""
    baseline = {f"t{index}": [1.0] for index in range(tasks)}
    return {name: [1.0 + difference] for name in baseline}, baseline


@pytest.mark.parametrize("tasks", [6, 12])
def test_a_candidate_that_is_worse_seldom_passes_although_its_scores_are_mostly_equal(tasks: int) -> None:
    seed = random.Random(tasks)
    pairs = [(sweep([0.85] * tasks, 1, seed), sweep([1.0] * tasks, 1, seed)) for _ in range(300)]
    assert sum(candidate == baseline for candidate, baseline in pairs) > 0.1 * len(pairs)
    assert share([judge(*pair, 0.1) for pair in pairs], Verdict.NO_WORSE) <= 0.025


def test_equal_scores_are_no_worse_only_in_as_many_tasks_as_the_gate_asks_for() -> None:
    found = judge(*same(6), TOLERANCE)
    assert (found.verdict, found.need) == (Verdict.NOT_ENOUGH_DATA, Need(None, 183))
    assert judge(*same(182), TOLERANCE).verdict is Verdict.NOT_ENOUGH_DATA
    assert judge(*same(183), TOLERANCE).verdict is Verdict.NO_WORSE
    assert judge(*same(1000), 0.0).need == Need(None, None)


def test_the_same_difference_in_each_task_is_bounded_by_the_range_of_the_scores() -> None:
    found = judge(*same(20, -0.1), 0.2)
    assert found.verdict is Verdict.NOT_ENOUGH_DATA
    assert found.need is not None
    assert found.need.tasks is not None
    assert judge(*same(found.need.tasks, -0.1), 0.2).verdict is Verdict.NO_WORSE
    wide = {f"t{index}": [100.0, -50.0] for index in range(found.need.tasks)}
    assert judge(wide, wide, 0.2).verdict is Verdict.NOT_ENOUGH_DATA


def test_a_candidate_does_not_pass_because_its_trials_of_difficult_tasks_are_excluded() -> None:
    baseline = {f"t{index}": [1.0] for index in range(10)}
    candidate = {f"t{index}": [1.0] for index in range(6)}
    found = judge(candidate, baseline, 0.5, excluded=["t6", "t7", "t8", "t9", "not in the baseline"])
    assert (found.verdict, found.lacking) == (Verdict.NOT_ENOUGH_DATA, 4)
    assert judge(candidate, baseline, 0.5).verdict is Verdict.NO_WORSE  # it runs a part of the tasks
    assert judge(candidate, baseline, 0.5, excluded=["not in the baseline"]).verdict is Verdict.NO_WORSE


def test_a_drop_in_each_of_six_tasks_is_worse() -> None:
    candidate = {f"t{index}": [0.5] for index in range(6)}
    assert judge(candidate, {name: [1.0] for name in candidate}, TOLERANCE).verdict is Verdict.WORSE


def test_a_real_drop_within_the_tolerance_is_no_worse() -> None:
    candidate = {f"t{index}": [0.99 - index / 10_000] for index in range(20)}
    assert judge(candidate, {name: [1.0] for name in candidate}, TOLERANCE).verdict is Verdict.NO_WORSE


def test_fewer_than_six_shared_tasks_decide_nothing() -> None:
    candidate = {f"t{index}": [0.0] for index in range(5)}
    found = judge(candidate, {name: [1.0] for name in candidate}, TOLERANCE)
    assert found.verdict is Verdict.NOT_ENOUGH_DATA
    assert found.need == Need(None, 6)
    assert judge({}, {}, TOLERANCE).difference is None


def test_a_sweep_of_few_tasks_finds_no_drop_at_all() -> None:
    assert smallest_drop(5, 100) == inf
    assert smallest_drop(50, 4) < smallest_drop(50, 1) < 0.3


def test_a_sweep_that_is_too_small_for_a_drop_is_told_how_many_attempts_it_needs() -> None:
    note = too_small(50, 4, 0.05)
    assert "50 tasks with 4 attempts each show a drop of 0.14" in note
    attempts = int(note.split("about ")[1].split()[0])
    assert too_small(50, attempts, 0.05) == ""
    assert "fewer than 6 tasks never show a drop" in too_small(5, 100, 0.5)


def test_a_sweep_whose_tasks_are_not_known_yet_gets_no_note() -> None:
    assert too_small(0, 1, 0.01) == ""
