"""Test when lost attempts, and not the agent, used up the budget of a trial."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from multistep.api.trial.trial import MultiStepTrial, parse_trial
from multistep.engine.score.usage_totals import lost_attempts_used_budget, lost_runs_used_budget


@dataclass(frozen=True)
class Used:
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0


ALL = {"inputTokens": 100, "outputTokens": 100, "costUSD": 1.0}
RESUMED = {"resumed": {"after": "a/1", "attempts": [1], "digest": "d"}, "taskSteps": ["a/1", "b"]}
HALF = Used(50, 50, 0.5)


def trial(limits: dict[str, float] | None = None, **status: Any) -> MultiStepTrial:
    agent = {"name": "codex", "model": "openai/m", "credentials": [{"name": "OPENAI_API_KEY", "value": "x"}]}
    spec = {"task": {"inline": {"config": {}}}, "agent": {**agent, **({"limits": limits} if limits else {})}}
    return parse_trial({"metadata": {"name": "t", "uid": "u"}, "spec": spec, "status": {"attempt": 2, **status}})


@pytest.mark.parametrize(
    ("limits", "status", "spent", "most", "lost"),
    [
        (ALL, {}, {"1/b": HALF}, Used(0, 51), True),
        (ALL, {}, {"1/b": HALF}, Used(0, 50), False),
        (ALL, {}, {"1/b": HALF}, Used(0, 101), False),
        (ALL, {}, {"1/b": HALF}, Used(51, 101), False),
        (ALL, {}, {"1/b": HALF, "2/b": HALF}, Used(1), True),
        (ALL, {}, {"1/b": HALF, "2/b": HALF}, Used(51), False),
        (ALL, {}, {"2/b": HALF}, Used(51), False),
        (ALL, {"attempts": [{"number": 1, "reason": "PodDeleted"}]}, {"1/b": HALF}, Used(51), True),
        (ALL, {"attempts": [{"number": 1, "reason": "RetriedBySpec"}]}, {"1/b": HALF}, Used(51), False),
        (ALL, RESUMED, {"1/a%2F1": HALF}, Used(51), False),
        (ALL, RESUMED, {"1/b": HALF}, Used(51), True),
        (ALL, {**RESUMED, "taskSteps": []}, {"1/b": HALF}, Used(51), False),
        (ALL, {**RESUMED, "taskSteps": [], "steps": [{"name": "a/1"}, {"name": "b"}]}, {"1/b": HALF}, Used(51), True),
        (ALL, {**RESUMED, "taskSteps": [], "steps": [{"name": "a/1"}, {"name": "b"}]}, {"1/a%2F1": HALF}, Used(51), False),
        ({"costUSD": 1.0}, {}, {"1/b": HALF}, Used(1000, 1000, 0.6), True),
        (None, {}, {"1/b": HALF}, Used(1000, 1000, 1000.0), False),
    ],
)
def test_lost_attempts_used_the_budget_only_if_the_request_had_room_without_them(
    limits: dict[str, float] | None, status: dict[str, Any], spent: dict[str, Used], most: Used, lost: bool
) -> None:
    found = trial(limits, **status)
    assert lost_attempts_used_budget(found.status, found.spec.agent.limits, spent, most) is lost


def test_a_trial_in_its_first_attempt_has_lost_none() -> None:
    found = trial(ALL, attempt=None)
    assert not lost_attempts_used_budget(found.status, found.spec.agent.limits, {"1/a": HALF}, Used(51))


def test_lost_runs_of_a_verification_are_not_the_judges_own_use_of_its_budget() -> None:
    judge = {"model": "openai/m", "credentials": [{"name": "OPENAI_API_KEY", "value": "x"}], "limits": ALL}
    spec = {"task": {"inline": {"config": {}}}, "agent": {"name": "nop"}, "models": {"judge": judge}}
    judged = parse_trial({"metadata": {"name": "t", "uid": "u"}, "spec": spec, "status": {"attempt": 2}})
    assert lost_runs_used_budget(judged, {"2/a": HALF, "2/a%2F2": HALF}, Used(1), ["a"])
    assert lost_runs_used_budget(judged, {"1/a": HALF, "2/a": HALF}, Used(1), [])
    assert not lost_runs_used_budget(judged, {"2/a": HALF, "2/a%2F2": HALF}, Used(1), [])
