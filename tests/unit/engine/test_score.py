"""Test the score over all declared steps: stopping earlier never raises it, and a trial whose rewards are all 1 passes with 1.0."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multistep.api.sweep.sweep import Scoring
from multistep.api.trial.score import ScoreRule
from multistep.api.trial.status import TrialStatus
from multistep.api.trial.trial import parse_status
from multistep.engine.score.rewards import gate_failure
from multistep.engine.score.score_in_sweep import Scored, scored
from multistep.engine.score.trial_score import Score, Verdict, outcome, step_score, trial_score
from tests.support.played import IMAGE, ONE, THREE, plan, play, rewarded
from tests.unit.engine.test_scoring import EXIT_1, ZERO, finished, known, resource

COMMAND = {"agent": {"name": "command", "command": ["x"]}}
FINAL = 'multi_step_reward_strategy = "final"\n'
GATED = THREE.replace('name = "b"\n', 'name = "b"\nmin_reward = 1.0\n')

KEYS = st.sampled_from(["reward", "correctness", "style"])
NUMBERS = st.floats(-2, 2, allow_nan=False) | st.integers(-3, 3)
REWARDS = st.none() | st.dictionaries(KEYS, NUMBERS, max_size=3)
VERDICTS = st.lists(st.builds(Verdict, REWARDS, st.sampled_from([None, True, False])), max_size=5)
STRATEGIES = st.sampled_from(["Mean", "Final"])
KEY = st.none() | KEYS


@given(VERDICTS, st.integers(0, 3), STRATEGIES, KEY, st.data())
def test_stopping_earlier_never_raises_the_score_or_makes_a_pass(
    verdicts: Sequence[Verdict], more: int, strategy: Any, key: str | None, data: st.DataObject
) -> None:
    rule = ScoreRule(steps=len(verdicts) + more, strategy=strategy)
    whole = trial_score(verdicts, rule, key)
    cut = trial_score(verdicts[: data.draw(st.integers(0, len(verdicts)))], rule, key)
    assert (whole is None) == (cut is None) == (rule.steps == 0)
    assert whole is None or cut is None or (cut.value <= whole.value and cut.passed <= whole.passed)


@given(VERDICTS, st.integers(0, 3), STRATEGIES, KEY)
def test_a_score_lies_between_the_least_and_the_greatest_reward(
    verdicts: Sequence[Verdict], more: int, strategy: Any, key: str | None
) -> None:
    """A missing result counts as 0, and so does a negative score of a step."""
    found = trial_score(verdicts, ScoreRule(steps=len(verdicts) + more, strategy=strategy), key)
    rewards = [0.0, *(max(0.0, each) for verdict in verdicts for each in (verdict.rewards or {}).values())]
    assert found is None or 0 <= found.value <= max(rewards) + 1e-12
    if verdicts and not more and all(verdict.rewards for verdict in verdicts) and key is None and found is not None:
        assert found.value >= min(rewards[1:]) - 1e-12


@given(st.lists(st.dictionaries(KEYS, st.just(1) | st.just(1.0), min_size=1), min_size=1, max_size=6), STRATEGIES)
def test_full_marks_in_any_keys_are_a_pass_with_a_score_of_exactly_1(rewards: list[dict[str, float]], strategy: Any) -> None:
    verdicts = [Verdict(each, gate_failure(1.0, each) is None if "reward" in each else None) for each in rewards]
    assert trial_score(verdicts, ScoreRule(steps=len(rewards), strategy=strategy)) == Score(1.0, passed=True)


@given(VERDICTS, STRATEGIES, KEY)
def test_a_pass_needs_every_declared_step(verdicts: Sequence[Verdict], strategy: Any, key: str | None) -> None:
    found = trial_score(verdicts, ScoreRule(steps=len(verdicts) + 1, strategy=strategy), key)
    assert found is not None and not found.passed


@pytest.mark.parametrize(
    ("rewards", "key", "counts"),
    [
        ({"reward": 0.5, "style": 1}, None, 0.5),
        ({"correctness": 0.5, "style": 1}, None, 0.75),
        ({"correctness": 0.5, "style": 1}, "style", 1.0),
        ({"reward": 0.5}, "style", 0.0),
        ({}, None, 0.0),
        (None, None, 0.0),
        ({"reward": -1}, None, 0.0),
        ({"reward": 10**400}, None, 0.0),
        ({"a": 1e200, "b": 1}, None, 0.0),
    ],
)
def test_a_step_counts_its_reward_or_the_mean_of_its_keys(
    rewards: Mapping[str, float] | None, key: str | None, counts: float
) -> None:
    assert step_score(Verdict(rewards), key) == counts


def test_an_agent_that_quits_after_a_solved_step_has_its_share_and_no_pass() -> None:
    ended = finished(play(plan(THREE, COMMAND), {"a/agent": EXIT_1, "a/verifier": ONE}).journal)
    assert ended.rewards == {"reward": 1.0}
    assert (ended.score, ended.passed, ended.outcome) == (1 / 3, False, "AgentError")
    assert ended.failure and (ended.failure.class_, ended.failure.reason) == ("Agent", "NonZeroAgentExitCodeError")


def test_an_oracle_of_any_keys_has_a_score_of_1_and_passes() -> None:
    keys = {"b/verifier": rewarded(json='{"correctness": 1.0, "style": 1}')}
    ended = finished(play(plan(THREE), keys).journal)
    assert ended.rewards == {"reward": 2 / 3, "correctness": 1 / 3, "style": 1 / 3}
    assert (ended.score, ended.passed, ended.outcome) == (1.0, True, "Passed")
    assert [(each.score, each.passed) for each in ended.steps] == [(1.0, True)] * 3


@pytest.mark.parametrize(
    ("toml", "results", "wanted"),
    [
        (THREE, {}, (1.0, True, "Passed")),
        (THREE, {"c/verifier": rewarded(txt="0.4")}, (2.4 / 3, False, "NotPassed")),
        (THREE, {"c/verifier": rewarded(json="{}")}, (2 / 3, False, "NotPassed")),
        (GATED, {"b/verifier": ZERO}, (1 / 3, False, "GateNotMet")),
        (
            THREE.replace('name = "c"\n', 'name = "c"\nmin_reward = 0.4\n'),
            {"c/verifier": rewarded(txt="0.4")},
            (2.4 / 3, True, "Passed"),
        ),
        (FINAL + THREE, {"a/verifier": ZERO}, (1.0, True, "Passed")),
        (FINAL + THREE, {"b/verifier": rewarded()}, (0.0, False, "VerifierError")),
        (FINAL + GATED, {"b/verifier": rewarded(txt="0.9")}, (0.0, False, "GateNotMet")),
        (THREE, {"b/setup": EXIT_1}, (1.0, True, "Passed")),
        (IMAGE, {"task/verifier": rewarded(txt="0.5")}, (0.5, False, "NotPassed")),
    ],
)
def test_each_rule_of_the_table(toml: str, results: Mapping[str, Any], wanted: tuple[float, bool, str]) -> None:
    ended = finished(play(plan(toml), results).journal)
    assert (ended.score, ended.passed, ended.outcome) == wanted


def test_an_agent_that_reached_its_timeout_in_the_last_step_and_passed_it_passed() -> None:
    late = {"c/agent": {"timedOut": True, "exitCode": None}}
    ended = finished(play(plan(GATED, COMMAND), late).journal)
    assert (ended.score, ended.passed, ended.outcome) == (1.0, True, "Passed")
    assert ended.failure is not None and ended.failure.reason == "AgentTimeoutError"
    early = finished(play(plan(GATED, COMMAND), {"b/agent": {"timedOut": True, "exitCode": None}}).journal)
    assert (early.steps[-1].gate, early.score, early.passed) == (True, 2 / 3, False)


def test_without_verification_a_trial_has_no_score() -> None:
    ended = finished(play(plan(THREE, {"verifier": {"disable": True}})).journal)
    assert (ended.score, ended.passed, ended.outcome) == (None, None, "Unverified")


def test_only_the_steps_that_a_trial_is_to_run_are_declared() -> None:
    ended = finished(play(plan(THREE, {"toStep": "b"})).journal)
    assert (ended.score, ended.passed, ended.score_rule) == (1.0, True, ScoreRule(steps=2, strategy="Mean"))


@pytest.mark.parametrize("class_", ["Infrastructure", "Provider", "Task", "User"])
def test_what_no_agent_caused_is_excluded(class_: Any) -> None:
    assert outcome(class_, None, gate_failed=False) == "Excluded"


# -- scoring options of a sweep


def chosen(toml: str, results: Mapping[str, Any], spec: Mapping[str, Any] | None = None, **scoring: Any) -> Scored:
    status = parse_status(resource(finished(play(plan(toml, spec), results).journal)))
    return scored(status, Scoring(**scoring))


STYLED = {f"{name}/verifier": rewarded(json='{"reward": 0.5, "style": 1}') for name in "abc"}


def test_a_sweep_chooses_the_key() -> None:
    assert chosen(THREE, STYLED) == Scored(0.5, passed=False)
    assert chosen(THREE, STYLED, key="style") == Scored(1.0, passed=True)
    assert chosen(THREE, STYLED, key="speed") == Scored(0.0, passed=False)
    assert chosen(THREE, {**STYLED, "b/verifier": ONE}, key="style") == Scored(2 / 3, passed=False)


def test_a_sweep_chooses_the_tasks_own_reward() -> None:
    stopped = {"b/verifier": rewarded(txt="0.5")}
    assert chosen(GATED, stopped) == Scored(0.5)
    assert chosen(GATED, stopped, strategy="AsTask") == Scored(0.75)
    assert chosen(THREE, {"b/verifier": rewarded(txt="-1")}, strategy="AsTask") == Scored(1 / 3)
    assert chosen(FINAL + THREE, {"a/verifier": ZERO}, strategy="AsTask") == Scored(1.0, passed=True)
    assert chosen(THREE, {each: rewarded(json="{}") for each in STYLED}, strategy="AsTask") == Scored(0.0)


def test_the_tasks_own_reward_counts_0_for_what_an_agents_error_prevented() -> None:
    quits = {"a/agent": EXIT_1}
    assert chosen(THREE, quits, COMMAND, strategy="AsTask") == Scored(1 / 3)
    assert chosen(FINAL + THREE, quits, COMMAND, strategy="AsTask") == Scored(0.0)
    assert chosen(THREE, {"c/verifier": rewarded()}, strategy="AsTask") == Scored(2 / 3)


def test_the_tasks_own_reward_counts_0_for_declared_steps_after_those_that_another_trial_ran() -> None:
    """Steps that another trial ran count in the mean of the task's own reward, but are no declared steps of this trial."""
    steps = [{"name": "a", "trial": "source", "rewards": {"reward": 1}}, {"name": "b", "rewards": {"reward": 1}}]
    status = {
        "score": 0.5, "passed": False, "steps": steps, "scoreRule": {"steps": 2, "strategy": "Mean"},
        "failure": {"class": "Agent", "reason": "NonZeroAgentExitCodeError"},
    }  # fmt: skip
    assert scored(TrialStatus.model_validate(status), Scoring(strategy="AsTask")) == Scored(2 / 3)


def test_the_tasks_own_reward_counts_0_if_no_float_can_hold_it() -> None:
    huge = {f"{name}/verifier": rewarded(txt="1e308") for name in "abc"}
    assert chosen(THREE, huge, strategy="AsTask") == Scored(0.0, invalid=True)


def test_a_sweep_chooses_what_a_pass_is() -> None:
    half = {"b/verifier": rewarded(txt="0.5")}
    assert chosen(THREE, half, pass_=0.8) == Scored(2.5 / 3, passed=True)
    assert chosen(THREE, half, pass_=0.9) == Scored(2.5 / 3, passed=False)


def test_a_key_that_the_status_may_have_lost_is_not_0() -> None:
    many = {"b/verifier": rewarded(json=str({f"k{number}": 1 for number in range(70)}).replace("'", '"'))}
    assert chosen(THREE, many) == Scored(1.0, passed=True)
    assert chosen(THREE, many, key="k69") == Scored(invalid=True)
    assert chosen(THREE, {**STYLED, **many}, key="k1").invalid is False


def test_a_trial_that_its_agent_failed_counts_0_by_any_rule() -> None:
    failed = {"score": 0.0, "passed": False, "steps": [{"name": "a", "rewards": {"reward": 1}}]}
    assert scored(TrialStatus.model_validate(failed), Scoring(key="x", strategy="AsTask")) == Scored(0.0)
    assert scored(TrialStatus(), Scoring(key="x")) == Scored(None)


def test_unverified_trials_have_no_score_by_any_rule() -> None:
    found = known(play(plan(THREE, {"verifier": {"disable": True}})))
    assert (found.score, found.passed) == (None, False)
