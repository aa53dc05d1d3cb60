"""The score of a trial in a sweep. Status, report and comparison all use this module.

A failure's class says where it happened. A failed trial gets a score if an agent may have caused the failure: once an agent has run
in an environment, it may have broken everything that runs there later. A step without a verdict then counts as 0, so an agent
cannot avoid a 0 by crashing or by breaking its verifier. Trials with failures that only the infrastructure, the task or a user can
cause are excluded.
"""

from __future__ import annotations

from typing import Final, Literal, Protocol

from multistep.api.sweep import Scoring
from multistep.api.trial_status import FailureClass, TrialStatus
from multistep.engine.journal import AGENT, HEALTHCHECK, SETUP, Journal
from multistep.engine.plan import TrialPlan
from multistep.engine.rewards import Rewards, StepException, gate_failure, trial_rewards

State = Literal["Active", "Complete", "Failed"]
REWARD: Final = "reward"  # the key of the rewards that sweeps and reports average
MOST_REWARD: Final = 1e100

AGENT_ERRORS: Final = frozenset({"NonZeroAgentExitCodeError", "OutOfMemoryError", "OutOfDiskError", "ContainerKilledError"})
"""Failures of the agent's phase after which Harbor regards a reward as invalid; spec.scoring.agentErrors decides about them.
AgentTimeoutError is not one: Harbor, too, regards the reward of an agent that reached its timeout as valid."""

_BY_THE_TASK_ALONE: Final = frozenset({"FileNotFoundError", "ValueError"})  # exception types that only the task can cause
_BEFORE_THE_AGENT: Final = frozenset({"", SETUP, HEALTHCHECK})  # phases of a step that run before its agent
_DEADLINE_SHARE: Final = 0.5  # an agent that used at least this share of activeDeadlineSeconds gets a score of 0


class Ended(Protocol):
    """The fields of a trial that its score depends on.

    failure_class, score: the fields of status.failure; agent_error: whether any step of the trial has one of AGENT_ERRORS;
    tampered: whether there is evidence of tampering (engine.tampering.evidence).
    """

    @property
    def state(self) -> State: ...
    @property
    def reward(self) -> float | None: ...
    @property
    def failure_class(self) -> FailureClass | None: ...
    @property
    def score(self) -> float | None: ...
    @property
    def agent_error(self) -> bool: ...
    @property
    def tampered(self) -> bool: ...


def counted_reward(trial: Ended, scoring: Scoring) -> float | None:
    """Return the value with which a trial counts in its agent's mean; None if the trial is unfinished or excluded."""
    if trial.state == "Active" or _is_excluded(trial, scoring):
        return None
    found = trial.reward if trial.failure_class is None else trial.score
    if found is None:
        return None
    return 0.0 if is_too_large(found) or (trial.tampered and scoring.tampering == "Zero") else float(found)


def _is_excluded(trial: Ended, scoring: Scoring) -> bool:
    """Return whether the sweep's policy excludes a trial."""
    by_environment = trial.failure_class in ("Verifier", "Task") or is_too_large(trial.reward)
    return (
        (trial.agent_error and scoring.agent_errors == "Exclude")
        or (by_environment and scoring.environment_errors == "Exclude")
        or (trial.tampered and scoring.tampering == "Exclude")
    )


def failure_class_of(trial: Ended, scoring: Scoring) -> FailureClass | None:
    """Return the class of the failure that ended a trial, left it without a valid reward or changed its score; None if there is
    none."""
    if trial.state == "Active" or trial.failure_class is not None:
        return trial.failure_class
    if trial.tampered and scoring.tampering != "Report":
        return "Agent"
    if is_too_large(trial.reward):
        return "Verifier"
    return "Task" if trial.reward is None else None


def is_too_large(reward: float | None) -> bool:
    """Return whether the reward is too large to be summed. Such a reward is scored 0, because an agent may provoke it: a verifier
    may divide by a number in the agent's output."""
    return reward is not None and abs(reward) > MOST_REWARD


def score_of(plan: TrialPlan, journal: Journal) -> float:
    """Return the trial's reward, computed with 0 for each step that has a verifier but no verdict.

    Steps after a failed gate do not count, as in the trial's reward.
    """
    given = {run.name: run.rewards for run in journal.steps}
    verdicts: list[Rewards | None] = []
    for step in plan.steps[: len(given)] if _ends_at_gate(plan, journal) else plan.steps:
        found = given.get(step.name)
        verdicts.append({REWARD: 0} if found is None and step.verifier is not None else found)
    try:
        return float((trial_rewards(plan.strategy, verdicts) or {}).get(REWARD, 0))
    except OverflowError:
        return 0.0


def _ends_at_gate(plan: TrialPlan, journal: Journal) -> bool:
    last = len(journal.steps) - 1
    if last < 0 or journal.steps[last].rewards is None:
        return False
    return gate_failure(plan.steps[last].min_reward, journal.steps[last].rewards) is not None


def agent_may_have_caused(exception: StepException, journal: Journal) -> bool:
    """Return whether an agent may have caused the failure that ended a Complete trial."""
    last = journal.steps[-1] if journal.steps else None
    if last is None or exception.type in _BY_THE_TASK_ALONE or last.untouched:
        return False
    return len(journal.steps) > 1 or (exception.phase or last.phase) not in _BEFORE_THE_AGENT


def agent_used_deadline(status: TrialStatus, deadline: float | None, now: float) -> bool:
    """Return whether the agent's phases of the current attempt's steps, with those that it kept, used at least half of the trial's
    deadline (seconds).

    If they used less, the trial missed its deadline because it waited for the cluster or a verifier's pod.
    """
    return deadline is not None and _agent_seconds(status, now) >= _DEADLINE_SHARE * deadline


def _agent_seconds(status: TrialStatus, now: float) -> float:
    seconds = 0.0
    for step in status.steps:
        if step.durations is not None and step.durations.agent is not None:
            seconds += step.durations.agent
        elif (step.phase or "").lower() == AGENT and step.start_time is not None:
            seconds += max(0.0, now - step.start_time.timestamp())
    return seconds
