"""The summary of a report's rows: standings of agents, comparisons of agents in pairs, steps, durations, failures."""

from __future__ import annotations

import random
from typing import Any

import pytest

from multistep.report.rows import TrialRow, trial_row
from multistep.report.summary import mean_difference, summarize
from tests.unit.report.samples import step, sweep, trial, used


def test_standings_are_by_mean_with_agents_without_one_last() -> None:
    found = summarize(sweep({("a", "poor"): [0.0], ("a", "none"): ["Task"], ("a", "good"): [1.0]}))
    assert [each.agent for each in found.standings] == ["good", "poor", "none"]


def test_a_standing_reports_what_counts_and_what_is_excluded_by_class() -> None:
    outcomes: list[float | str | None] = [1.0, 0.0, "Agent", "Infrastructure", "Infrastructure", "Verifier", None]
    (found,) = summarize(sweep({("a", "mine"): outcomes, ("b", "mine"): ["Task"]})).standings
    assert (found.trials, found.counted, found.active, found.tasks) == (8, 3, 1, 2)
    assert found.excluded == {"Infrastructure": 2, "Verifier": 1, "Task": 1}
    assert found.mean is not None
    assert found.mean.value == pytest.approx(1 / 3)
    assert (found.mean.tasks, found.mean.trials) == (1, 3)


def test_excluded_trials_are_never_0_and_the_mean_if_they_were_is_reported() -> None:
    (found,) = summarize(sweep({("a", "mine"): [1.0, "Infrastructure"], ("b", "mine"): [1.0, 1.0]})).standings
    assert found.mean is not None
    assert (found.mean.value, found.mean_if_excluded_zero) == (1.0, 0.75)
    (fine,) = summarize(sweep({("a", "mine"): [1.0, None]})).standings
    assert fine.mean_if_excluded_zero is None


def test_passes_are_of_few_ks_and_of_trials_that_count() -> None:
    (found,) = summarize(sweep({("a", "mine"): [1.0, 0.5, 0.0, "Infrastructure", 2.0, 0.0]})).standings
    assert list(found.passes) == [1, 2, 4, 5]
    assert found.passes[1].value == pytest.approx(2 / 5)
    assert found.passes[5].value == 1


def test_each_agent_is_compared_with_each_and_ps_are_raised_for_their_number() -> None:
    dice = random.Random(5)
    outcomes = {
        (f"t{n}", agent): [dice.random() + better] for n in range(8) for agent, better in (("a", 0.5), ("b", 0.1), ("c", 0))
    }
    found = summarize(sweep(outcomes))
    assert [(each.first, each.second) for each in found.pairs] == [("a", "b"), ("a", "c"), ("b", "c")]
    plain = [each.difference.p for each in found.pairs]
    assert all(each.p is not None and p is not None and each.p >= p for each, p in zip(found.pairs, plain, strict=True))
    assert min(each.p for each in found.pairs if each.p is not None) == pytest.approx(3 * min(p for p in plain if p is not None))


def test_a_single_task_makes_a_difference_without_a_p_and_no_task_makes_none() -> None:
    found = summarize(sweep({("t", "a"): [1.0], ("t", "b"): [0.0], ("u", "c"): [1.0]}))
    assert [(each.first, each.second, each.p, each.is_real) for each in found.pairs] == [("a", "b", None, False)]


def test_two_sweeps_are_compared_by_the_tasks_they_share() -> None:
    first, second = sweep({("a", "x"): [1.0], ("b", "x"): [1.0]}), sweep({("b", "y"): [0.5], ("c", "y"): [0.0]})
    found = mean_difference(first, second)
    assert found is not None
    assert (found.estimate.value, found.estimate.tasks) == (0.5, 1)
    assert mean_difference(first, sweep({("c", "y"): [0.0]})) is None


def test_the_steps_of_a_task_count_who_reached_and_who_passed_among_trials_that_count() -> None:
    far = [step("a", 1.0, seconds={"agent": 2, "verifier": 1}), step("b", 0.5, seconds={"agent": 5})]
    rows = [
        trial_row(trial(attempt=1, reward=0.5, steps=[step("a", 0.0, gate=False)])),
        trial_row(trial(attempt=2, reward=0.5, steps=far)),
        trial_row(trial(attempt=3, failure=("Agent", "NonZeroAgentExitCodeError"), steps=[])),
        trial_row(trial(attempt=4, ended="Failed", failure=("Infrastructure", "NodeLost"), steps=[step("a", 1.0)])),
    ]
    (found,) = summarize(rows).tasks
    assert found.counted == 3
    assert found.mean == pytest.approx(1 / 3)
    first, second = found.steps
    assert (first.step, first.trials, first.reached, first.passed, first.score, first.seconds) == ("a", 3, 2, 1, 0.5, 3.0)
    assert (second.step, second.trials, second.reached, second.passed, second.score, second.seconds) == ("b", 3, 1, 0, 0.5, 5.0)


def test_durations_are_by_agent_of_trials_and_of_phases() -> None:
    rows = [trial_row(trial(attempt=n, reward=1.0, seconds=n, steps=[step("a", seconds={"agent": n})])) for n in range(1, 12)]
    found = summarize(rows).durations
    assert [(each.agent, each.what, each.count, each.median, each.p90, each.longest) for each in found] == [
        ("mine", "trial", 11, 6, 10, 11),
        ("mine", "agent", 11, 6, 10, 11),
    ]


def test_failures_are_by_class_and_reason_with_the_most_first() -> None:
    found = summarize(sweep({("a", "x"): ["Task", "Infrastructure", "Infrastructure", 1.0, None]})).failures
    assert [(each.failure_class, each.reason, len(each.trials)) for each in found] == [
        ("Infrastructure", "InfrastructureReason", 2),
        ("Task", "TaskReason", 1),
    ]


def test_no_trial_at_all_is_a_summary_too() -> None:
    found = summarize([])
    assert (found.standings, found.pairs, found.tasks, found.durations, found.failures, found.rows) == ([], [], [], [], [], [])


def test_the_cost_of_a_pass_includes_the_trials_that_did_not_pass() -> None:
    def priced(attempt: int, reward: float, cost: float | None) -> TrialRow:
        usage = {"inputTokens": 1, **({} if cost is None else {"costUSD": cost})}
        return trial_row(trial(attempt=attempt, reward=reward, steps=[step("a", reward, usage=usage)]))

    rows = [priced(1, 1.0, 0.5), priced(2, 0.0, 1.0), priced(3, 1.0, 0.5)]
    (found,) = summarize(rows).standings
    assert (found.cost_usd, found.cost_per_pass) == (2.0, 1.0)
    (found,) = summarize([*rows, priced(4, 0.0, None)]).standings
    assert (found.cost_usd, found.cost_per_pass) == (None, None)
    (found,) = summarize([priced(1, 0.0, 1.0)]).standings
    assert (found.cost_usd, found.cost_per_pass) == (1.0, None)


def test_the_mean_cost_of_a_trial_is_of_scored_trials_and_every_task_weighs_the_same() -> None:
    def priced(task: str, attempt: int, cost: float | None, **fields: Any) -> TrialRow:
        return trial_row(trial(task, attempt=attempt, steps=[step("a", 1.0, usage=used(cost))], **fields))

    scored = [priced("a", n, cost, reward=1.0) for n, cost in enumerate((0.1, 0.3))] + [priced("b", 1, 1.0, reward=0.0)]
    others = [priced("b", 2, 5.0, ended="Failed", failure=("Infrastructure", "NodeLost")), priced("b", 3, 7.0, ended=None)]
    (found,) = summarize([*scored, *others]).standings
    assert [found.cost_usd, found.cost_per_trial] == pytest.approx([13.4, 0.6])
    (with_free,) = summarize([*scored, trial_row(trial("c", reward=0.0))]).standings  # its agent sent no model request
    assert with_free.cost_per_trial == pytest.approx(0.4)
    (unknown,) = summarize([*scored, priced("c", 1, None, reward=1.0)]).standings
    (none,) = summarize(others).standings
    assert (unknown.cost_per_trial, none.cost_per_trial) == (None, None)


def test_the_cost_of_an_agent_includes_the_trials_that_were_run_again() -> None:
    def priced(attempt: int, cost: float, **fields: Any) -> TrialRow:
        return trial_row(trial(attempt=attempt, steps=[step("a", 1.0, usage=used(cost, incomplete=1))], **fields))

    lost = priced(2, 4.0, ended="Failed", failure=("Infrastructure", "NodeLost"))
    other = trial_row(trial(agent="other", attempt=9, ended="Failed", failure=("Infrastructure", "NodeLost")))
    found = summarize([priced(1, 1.0, reward=1.0), priced(2, 1.0, reward=1.0)], [lost, other])
    (standing,) = found.standings
    assert (standing.trials, standing.counted, standing.excluded, len(found.rows)) == (2, 2, {}, 2)
    assert (standing.cost_usd, standing.cost_per_pass, standing.cost_per_trial) == (6.0, 3.0, 1.0)
    assert standing.incomplete_requests == 3


def test_a_standing_says_what_its_cost_does_not_include() -> None:
    rows = [trial_row(trial(attempt=n, reward=1.0, steps=[step("a", 1.0, usage=used(0.5, incomplete=n))])) for n in (0, 1)]
    (found,) = summarize(rows).standings
    assert (found.incomplete_requests, found.omission) == (1, "without 1 request of unknown usage")
    assert summarize(rows[:1]).standings[0].omission == ""
    (unpriced,) = summarize([trial_row(trial(reward=1.0, steps=[step("a", 1.0, usage=used(None, incomplete=4))]))]).standings
    assert (unpriced.incomplete_requests, unpriced.omission) == (4, "")


def test_the_requests_of_judge_and_simulated_user_are_apart_from_the_agents() -> None:
    lost = {"number": 1, "reason": "PodDeleted", "steps": [step("a", userUsage=used(0.5))]}
    roles = step("a", 1.0, usage=used(0.125), judgeUsage=used(2.0), userUsage=used(0.25))
    retried = trial(reward=1.0, steps=[roles], attempts=[lost])
    retried["status"]["attempt"] = 2
    row = trial_row(retried)
    assert (row.input_tokens, row.judge_input_tokens, row.user_input_tokens) == (10, 10, 20)
    assert (row.judge_requests, row.user_requests, row.user_output_tokens) == (5, 10, 2)
    found = summarize([row]).standings[0]
    assert (found.cost_usd, found.judge_cost_usd, found.user_cost_usd) == (0.125, 2.0, 0.75)
