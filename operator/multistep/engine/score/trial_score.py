"""Computes the score of a trial from the rewards of its steps. docs/reference/statistics.md has the rules as a table.

The score covers all declared steps, which are the steps that the trial was to run and verify. A step without a result counts as 0,
and no step counts less than 0. So a trial that finishes after fewer steps never has a higher score.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from multistep.api.trial.score import ScoreRule
from multistep.api.trial.status import FailureClass, StepStatus
from multistep.api.trial.values import Outcome
from multistep.engine.journal.journal import Number, StepRun
from multistep.engine.plan.plan import TrialPlan
from multistep.engine.score.rewards import Rewards

REWARD: Final = "reward"  # if a result has this key, only this key counts
PASS: Final = 1.0  # minimum reward with which a step without a gate passes
MAX_REWARD: Final = 1e100

_ERRORS: Final[dict[FailureClass, Outcome]] = {"Verifier": "VerifierError", "Task": "TaskError"}


@dataclass(frozen=True)
class Verdict:
    """The result of a started step."""

    rewards: Rewards | None
    """The step's rewards, None without a verifier result."""
    gate: bool | None = None
    """Whether the step's gate was met, None if it has no gate."""
    known: tuple[float, bool] | None = None
    """The step's score and whether it passed, set if ``rewards`` lacks some of the step's rewards."""


@dataclass(frozen=True)
class Score:
    """The score of a trial."""

    value: float
    passed: bool
    """Whether every declared step ran and passed. With strategy Final, only the last step and all gates have to pass."""


def rule_of(plan: TrialPlan, runs: Iterable[StepRun]) -> ScoreRule:
    """Return the rule for the trial's score. ``runs`` are the trial's started steps.

    Steps that another trial ran are not declared steps.
    """
    others = {run.name for run in runs if run.trial is not None}
    declared = [step for step in plan.steps[plan.branch.kept :] if step.verifier is not None and step.name not in others]
    return ScoreRule(steps=len(declared), strategy="Final" if plan.strategy == "final" else "Mean")


def verdict_of(run: StepRun) -> Verdict:
    """Return the result of a step."""
    return Verdict(run.rewards, run.gate_passed, run.known_score)


def known_score(step: StepStatus) -> tuple[float, bool] | None:
    """Return the score in a step's status and whether the step passed, None unless the status lacks some of its rewards."""
    return (step.score, bool(step.passed)) if step.omitted_rewards and step.score is not None else None


def trial_score(verdicts: Sequence[Verdict], rule: ScoreRule, key: str | None = None) -> Score | None:
    """Return the score of a trial, None if no step was to be verified.

    ``verdicts`` are the results of the trial's own started steps, in order. ``key`` is the only reward key that counts. With None,
    "reward" counts, or all keys of a step that has no "reward".
    """
    if not rule.steps:
        return None
    complete = len(verdicts) == rule.steps
    if rule.strategy == "Final":  # the last step's reward is the score, so earlier steps only have to pass their gates
        value = step_score(verdicts[-1], key) if complete else 0.0
        return Score(value, complete and step_passes(verdicts[-1], key) and all(verdict.gate is not False for verdict in verdicts))
    value = math.fsum(step_score(verdict, key) for verdict in verdicts) / rule.steps
    return Score(value, complete and all(step_passes(verdict, key) for verdict in verdicts))


def step_score(verdict: Verdict, key: str | None = None) -> float:
    """Return a step's score, which is its reward or the mean of its rewards, but at least 0. Without a result it is 0."""
    if verdict.known is not None and key is None:
        return verdict.known[0]
    return max(0.0, mean_reward(_counted(verdict, key)) or 0.0)


def step_passes(verdict: Verdict, key: str | None = None) -> bool:
    """Return whether a step passes.

    A step with a gate passes if the gate was met. A step without a gate passes if it has rewards that count, and all of them are 1
    or more and not too large.
    """
    if verdict.gate is not None:
        return verdict.gate
    if verdict.known is not None and key is None:
        return verdict.known[1]
    counted = _counted(verdict, key)
    return bool(counted) and all(PASS <= reward <= MAX_REWARD for reward in counted)


def counted_keys(rewards: Rewards, key: str | None = None) -> list[str]:
    """Return the keys whose rewards count: only ``key`` if given, else only "reward" if it exists, else all."""
    name = key or (REWARD if REWARD in rewards else None)
    return list(rewards) if name is None else [only for only in (name,) if only in rewards]


def mean_reward(rewards: Sequence[Number]) -> float | None:
    """Return the mean of rewards, None without rewards or if one is too large."""
    return None if not rewards or any(map(is_too_large, rewards)) else math.fsum(rewards) / len(rewards)


def has_too_large(verdicts: Iterable[Verdict], key: str | None = None) -> bool:
    """Return whether any reward that counts is too large."""
    return any(is_too_large(reward) for verdict in verdicts for reward in _counted(verdict, key))


def is_too_large(reward: Number) -> bool:
    """Return whether the reward is too large to be summed.

    Such a reward counts as 0, because an agent may provoke it, e.g. if the verifier divides by a number in the agent's output.
    """
    return abs(reward) > MAX_REWARD


def outcome(failure: FailureClass | None, score: Score | None, *, gate_failed: bool) -> Outcome:
    """Return a finished trial's outcome.

    ``failure`` is the class of the failure that ended the trial, and ``gate_failed`` is whether a gate was not met.
    """
    if score is None:
        return "Unverified" if failure is None else "Excluded"
    if score.passed:
        return "Passed"
    if failure is not None:
        return _ERRORS.get(failure, "AgentError")
    return "GateNotMet" if gate_failed else "NotPassed"


def _counted(verdict: Verdict, key: str | None) -> list[Number]:
    rewards = verdict.rewards or {}
    return [rewards[name] for name in counted_keys(rewards, key)]
