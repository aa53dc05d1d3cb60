"""Means, pass@k and differences, compared with independent computations."""

from __future__ import annotations

import math
import random
from fractions import Fraction
from itertools import combinations, product
from statistics import NormalDist

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from multistep.report.pass_at_k import pass_at_ks
from multistep.report.statistics import difference_of_chances, holm, mean_score, paired_difference, pass_at

REWARDS = st.floats(min_value=-10, max_value=10).map(lambda number: round(number, 3))
BY_TASK = st.dictionaries(st.text(max_size=3), st.lists(REWARDS, max_size=5), max_size=8)


def test_every_task_weighs_the_same_however_many_of_its_trials_count() -> None:
    found = mean_score({"easy": [1, 1, 1, 1], "hard": [0], "lost": []})
    assert found is not None
    assert (found.value, found.tasks, found.trials) == (0.5, 2, 5)


def test_nothing_that_counts_is_no_mean() -> None:
    assert mean_score({}) is None
    assert mean_score({"lost": []}) is None


def test_a_single_task_has_no_interval() -> None:
    found = mean_score({"only": [0, 1, 1]})
    assert found is not None
    assert (found.low, found.high) == (None, None)


def test_tasks_without_any_spread_report_no_interval_unless_they_all_pass_or_all_fail() -> None:
    halves = mean_score({"a": [0.5], "b": [0.5]})
    ones = mean_score({"a": [1], "b": [1], "c": [1]})
    zeros = mean_score({"a": [0], "b": [0], "c": [0]})
    assert halves is not None and ones is not None and zeros is not None
    assert (halves.low, halves.high) == (None, None)
    assert [ones.low, ones.high] == pytest.approx([0.025 ** (1 / 3), 1])
    assert [zeros.low, zeros.high] == pytest.approx([0, 1 - 0.025 ** (1 / 3)])


def test_an_exact_interval_is_of_scores_between_nought_and_one_only() -> None:
    for scores, value in (({"a": [-1, 1], "b": [0, 0]}, 0), ({"a": [0, 2], "b": [1, 1]}, 1)):
        found = mean_score(scores)
        assert found is not None
        assert (found.value, found.low, found.high) == (value, None, None)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("score", [1e6, 12345.678, -1e100])
def test_large_scores_that_differ_by_rounding_alone_are_equal(score: float) -> None:
    scores = {"a": [score], "b": [score], "c": [math.nextafter(score, math.inf)]}
    found, delta = mean_score(scores), paired_difference(scores, {task: [0.5] for task in scores})
    assert found is not None and delta is not None
    assert (found.low, found.high) == (None, None)
    assert (delta.estimate.low, delta.estimate.high, delta.p) == (None, None, 0.25)


def test_the_interval_is_students_of_the_tasks_means() -> None:
    found = mean_score({"a": [0, 1], "b": [0.6], "c": [0.4, 0.4, 0.4], "d": [0.25, 0.75]})
    means = [0.5, 0.6, 0.4, 0.5]
    spread = (sum((each - 0.5) ** 2 for each in means) / 3) ** 0.5 / 4**0.5
    assert found is not None
    assert found.low == pytest.approx(0.5 - 3.182446305284263 * spread)  # 97.5 % quantile of Student's t for 3 degrees of freedom
    assert found.high == pytest.approx(0.5 + 3.182446305284263 * spread)


def test_an_interval_ends_at_the_scale_of_the_scores_unless_one_is_beyond() -> None:
    wide = {"a": [0.0], "b": [1.0]}
    found, beyond = mean_score(wide), mean_score({**wide, "c": [1.5]})
    assert found is not None and (found.low, found.high) == (0, 1)
    assert beyond is not None and beyond.high is not None and beyond.high > 1.5
    delta, more = paired_difference(wide, {"a": [1.0], "b": [0.0]}), paired_difference({"a": [0], "b": [3.0]}, wide)
    assert delta is not None and (delta.estimate.low, delta.estimate.high) == (-1, 1)
    assert more is not None and more.estimate.high is not None and more.estimate.high > 3


def test_the_interval_holds_the_truth_about_as_often_as_claimed() -> None:
    dice, held, rounds = random.Random(7), 0, 400
    for _ in range(rounds):
        chances = [dice.betavariate(2, 2) for _ in range(30)]
        found = mean_score({str(n): [float(dice.random() < chance) for _ in range(5)] for n, chance in enumerate(chances)})
        assert found is not None and found.low is not None and found.high is not None
        held += found.low <= 0.5 <= found.high
    margin = 3 * NormalDist().stdev * (0.95 * 0.05 / rounds) ** 0.5
    assert abs(held / rounds - 0.95) < margin


@given(BY_TASK)
def test_a_mean_lies_between_its_rewards_and_in_its_interval(rewards: dict[str, list[float]]) -> None:
    found = mean_score(rewards)
    every = [each for those in rewards.values() for each in those]
    assert (found is None) == (not every)
    if found is not None:
        assert min(every) - 1e-9 <= found.value <= max(every) + 1e-9
        assert found.low is None or found.high is None or found.low <= found.value <= found.high


@pytest.mark.parametrize("k", [1, 2, 3])
def test_pass_at_k_is_the_share_of_all_draws_of_k_trials_that_hold_a_pass(k: int) -> None:
    passed = {"a": [True, False, False, False], "b": [True, True, False], "c": [False, False, False]}
    found = pass_at(k, passed)
    shares = [[any(draw) for draw in combinations(each, k)] for each in passed.values()]
    assert found is not None
    assert found.value == pytest.approx(sum(sum(each) / len(each) for each in shares) / len(shares))


@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=6), min_size=1, max_size=4), st.integers(1, 6))
def test_pass_at_k_is_that_share_for_any_trials(trials: list[list[bool]], k: int) -> None:
    shares = [Fraction(sum(map(any, combinations(each, k))), len(list(combinations(each, k)))) for each in trials if len(each) >= k]
    found = pass_at(k, {str(index): each for index, each in enumerate(trials)})
    assert (found is None) == (not shares)
    if found is not None:
        assert found.value == pytest.approx(float(sum(shares) / len(shares)))


def test_the_estimate_of_pass_at_k_is_right_on_average_whatever_the_chance_of_a_trial() -> None:
    """The estimate is unbiased: its expected value over all outcomes of 5 trials is 1 - (1 - chance) ** k."""
    for chance, k in product((Fraction(1, 10), Fraction(2, 3)), (1, 2, 4, 5)):
        expected = Fraction(0)
        for outcome in product((True, False), repeat=5):
            weight = chance ** sum(outcome) * (1 - chance) ** (5 - sum(outcome))
            found = pass_at(k, {"task": outcome})
            assert found is not None
            expected += weight * Fraction(found.value)
        assert float(expected) == pytest.approx(float(1 - (1 - chance) ** k))


def test_the_ks_that_are_shown_are_powers_of_two_and_the_most() -> None:
    assert [pass_at_ks(most) for most in (0, 1, 2, 3, 4, 5, 100)] == [
        [],
        [1],
        [1, 2],
        [1, 2, 3],
        [1, 2, 4],
        [1, 2, 4, 5],
        [1, 2, 4, 8, 16, 32, 64, 100],
    ]


def test_pass_at_k_leaves_out_tasks_with_fewer_trials() -> None:
    found = pass_at(3, {"enough": [True, False, False], "few": [False, False]})
    assert found is not None
    assert (found.value, found.tasks, found.trials) == (1, 1, 3)
    assert pass_at(3, {"few": [False, False]}) is None


def test_pass_at_ks_interval_stays_within_what_is_possible() -> None:
    found = pass_at(1, {"a": [True], "b": [True], "c": [False]})
    assert found is not None
    assert (found.low, found.high) == (0, 1)


def test_a_difference_is_paired_by_task() -> None:
    easy_and_hard = {str(n): [n / 10] for n in range(10)}
    a_little_better = {task: [reward + 0.05 + 0.01 * (index % 2)] for index, (task, (reward,)) in enumerate(easy_and_hard.items())}
    found = paired_difference(a_little_better, easy_and_hard)
    assert found is not None
    assert found.is_real
    assert found.estimate.value == pytest.approx(0.055)
    unpaired = stats.ttest_ind([each for (each,) in a_little_better.values()], [each for (each,) in easy_and_hard.values()])
    assert unpaired.pvalue > 0.5


def test_a_difference_is_of_the_tasks_that_both_have() -> None:
    found = paired_difference({"a": [1], "b": [0.5, 1], "c": [0]}, {"a": [0], "b": [0], "c": [], "d": [1]})
    assert found is not None
    assert (found.estimate.tasks, found.estimate.trials) == (2, 5)
    assert paired_difference({"a": [1]}, {"b": [1]}) is None


def test_a_difference_is_not_real_when_there_is_too_little_to_judge_by() -> None:
    for tasks, real in ((1, False), (2, False), (5, False), (6, True)):
        found = paired_difference({str(n): [1] for n in range(tasks)}, {str(n): [0] for n in range(tasks)})
        assert found is not None
        assert found.is_real is real


def test_a_few_tasks_that_differ_by_nearly_the_same_show_nothing_either() -> None:
    """Student's t-test alone would find a significant difference, because three similar values have a tiny sample variance."""
    found = paired_difference({"a": [1], "b": [1], "c": [1]}, {"a": [0], "b": [0], "c": [0.01]})
    assert found is not None
    assert (found.p, found.is_real) == (0.25, False)


def test_tasks_that_all_differ_by_the_same_report_no_interval_in_either_direction() -> None:
    ones, zeros = {str(n): [1] for n in range(8)}, {str(n): [0] for n in range(8)}
    for first, second in ((ones, zeros), (zeros, ones), (ones, ones), (zeros, zeros)):
        found = paired_difference(first, second)
        assert found is not None
        assert (found.estimate.low, found.estimate.high) == (None, None)


def test_p_is_about_the_share_of_all_ways_to_swap_the_two_that_differ_as_much() -> None:
    """Compare p with Fisher's randomisation test: for every subset of the tasks, swap the two agents' rewards in these tasks."""
    dice = random.Random(11)
    for shift in (0.0, 0.15, 0.4):
        first = {str(n): [dice.random() + shift] for n in range(12)}
        second = {str(n): [dice.random()] for n in range(12)}
        deltas = [first[task][0] - second[task][0] for task in first]
        sums = [abs(sum(sign * each for sign, each in zip(signs, deltas, strict=True))) for signs in product((1, -1), repeat=12)]
        found = paired_difference(first, second)
        assert found is not None and found.p is not None
        assert found.p == pytest.approx(sum(each >= abs(sum(deltas)) - 1e-12 for each in sums) / len(sums), abs=0.02)


def test_many_comparisons_find_something_by_chance_no_more_often_than_one_does() -> None:
    dice, rounds = random.Random(3), 2000
    found = sum(min(holm([dice.random() for _ in range(10)])) < 0.05 for _ in range(rounds))
    assert found / rounds < 0.05 + 3 * (0.05 * 0.95 / rounds) ** 0.5
    assert found > 0


def test_holm_raises_the_least_p_most_and_keeps_their_order() -> None:
    assert holm([0.04, 0.01, 0.9]) == pytest.approx([0.08, 0.03, 0.9])
    assert holm([0.02, 0.02]) == pytest.approx([0.04, 0.04])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []


def test_no_difference_is_not_real() -> None:
    found = paired_difference({"a": [1], "b": [0]}, {"a": [1], "b": [0]})
    assert found is not None
    assert (found.estimate.value, found.p, found.is_real) == (0, 1.0, False)


def test_differences_that_cancel_out_are_none_whatever_their_rounding() -> None:
    found = paired_difference({"a": [0.3], "b": [0.1]}, {"a": [0.2], "b": [0.2]})
    assert found is not None
    assert found.estimate.value == 0


@given(BY_TASK, BY_TASK)
def test_a_difference_turns_its_sign_when_the_two_change_places(
    first: dict[str, list[float]], second: dict[str, list[float]]
) -> None:
    one, other = paired_difference(first, second), paired_difference(second, first)
    assert (one is None) == (other is None)
    if one is not None and other is not None:
        assert one.estimate.value == pytest.approx(-other.estimate.value)
        assert one.p == pytest.approx(other.p)


@pytest.mark.parametrize(
    ("first", "second", "low", "high"),
    [  # Newcombe 1998, table II, method 10
        ((56, 70), (48, 80), 0.0524, 0.3339),
        ((9, 10), (3, 10), 0.1705, 0.8090),
        ((6, 7), (2, 7), 0.0582, 0.8062),
        ((5, 56), (0, 29), -0.0381, 0.1926),
        ((0, 10), (0, 20), -0.1611, 0.2775),
        ((0, 10), (0, 10), -0.2775, 0.2775),
        ((10, 10), (0, 20), 0.6791, 1.0),
        ((10, 10), (0, 10), 0.6075, 1.0),
    ],
)
def test_the_interval_of_a_difference_of_chances_is_that_of_the_source(
    first: tuple[int, int], second: tuple[int, int], low: float, high: float
) -> None:
    found, mirrored = (
        difference_of_chances([n < one[0] for n in range(one[1])], [n < other[0] for n in range(other[1])])
        for one, other in ((first, second), (second, first))
    )
    assert found is not None and mirrored is not None
    assert [found.low, found.high] == [pytest.approx(each, abs=5e-5) for each in (low, high)]
    assert [mirrored.value, mirrored.low, mirrored.high] == [pytest.approx(each, abs=5e-5) for each in (-found.value, -high, -low)]


@given(st.lists(st.booleans(), max_size=12), st.lists(st.booleans(), max_size=12))
def test_a_difference_of_chances_lies_in_its_interval_and_is_none_without_trials(first: list[bool], second: list[bool]) -> None:
    found = difference_of_chances(first, second)
    if not first or not second:
        assert found is None
        return
    assert found is not None and found.low is not None and found.high is not None
    assert -1.0000001 <= found.low <= found.value <= found.high <= 1.0000001
    assert (found.tasks, found.trials) == (1, len(first) + len(second))
