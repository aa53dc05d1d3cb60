"""Computes the score with which a trial counts in a sweep, according to spec.scoring.

The sweep's status, its report and comparisons of agents all use this module.

A failure's class shows where it occurred, not who caused it. A failed trial gets a score if an agent may have caused the failure:
after an agent has run in an environment, it may have broken everything that runs there later. A step without a verdict then counts
as 0, so an agent cannot avoid a 0 by crashing or by breaking its verifier. Trials with failures that only the infrastructure, the
task or a user can cause are excluded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from multistep.api.sweep.sweep import Scoring
from multistep.api.trial.error_policy import ErrorPolicyOverrides, counts_after
from multistep.api.trial.failure_table import RETRIED_BY_SPEC
from multistep.api.trial.score import ScoreRule
from multistep.api.trial.status import FailureClass, StepStatus, TrialStatus, holds
from multistep.api.trial.values import AGENT, HEALTHCHECK, SETUP, VERIFIER
from multistep.api.trial.waiting_reasons import GATEWAY_UNAVAILABLE
from multistep.engine.journal.journal import Journal, StepException
from multistep.engine.score.rewards import Rewards, trial_rewards
from multistep.engine.score.trial_score import REWARD, Score, Verdict, counted_keys, has_too_large, mean_reward, trial_score

State = Literal["Active", "Complete", "Failed"]

_BY_THE_TASK_ALONE: Final = frozenset({"FileNotFoundError", "ValueError"})  # exception types that only the task can cause
_BEFORE_THE_AGENT: Final = frozenset({"", SETUP, HEALTHCHECK})  # phases of a step that run before its agent
_DEADLINE_SHARE: Final = 0.5  # a trial that missed its deadline scores 0 if its agent used at least this share of the deadline


@dataclass(frozen=True)
class Scored:
    """The score of a trial under a sweep's scoring."""

    score: float | None = None
    """The score, None if the trial has none."""
    passed: bool = False
    invalid: bool = False
    """Whether a reward that counts is too large, or was omitted from the status."""


def scored(status: TrialStatus, scoring: Scoring) -> Scored:
    """Return the score of a trial with this status, under a sweep's spec.scoring."""
    key, rule, ran = scoring.key, status.score_rule, status.own_steps
    verdicts = [Verdict(step.rewards, step.gate) for step in ran]
    invalid = has_too_large(verdicts, key)
    if status.score is None or rule is None:  # excluded (no score), Failed (score 0 under every rule), or of an earlier release
        return Scored(status.score, bool(status.passed))
    value, passed = status.score, bool(status.passed)
    if key is not None or scoring.strategy == "AsTask":
        if any(step.omitted_rewards and (key or REWARD) not in (step.rewards or {}) for step in ran):
            return Scored(invalid=True)
        score = trial_score(verdicts, rule, key) or Score(value, passed)
        value, passed = score.value, score.passed
        if scoring.strategy == "AsTask":
            missing = rule.steps - len(ran) if status.failure else 0
            value = _as_task([step.rewards for step in status.steps], rule, key, missing)
    return Scored(value, passed if scoring.pass_ is None else value >= scoring.pass_, invalid)


def _as_task(results: Sequence[Rewards | None], rule: ScoreRule, key: str | None, missing: int) -> float:
    """Return the trial's reward under the task's multi_step_reward_strategy.

    ``missing`` is the number of declared steps that a failure prevented. If there are any, a step without a result counts as 0, as
    in the score.
    """
    if missing or None in results:
        results = [*(result or {} for result in results), *({} for _ in range(missing))]
    try:
        rewards = trial_rewards("final" if rule.strategy == "Final" else "mean", results) or {}
    except OverflowError:
        return 0.0
    return mean_reward([rewards[name] for name in counted_keys(rewards, key)]) or 0.0


class Ended(Protocol):
    """The fields of a trial that decide whether it counts."""

    @property
    def state(self) -> State: ...
    @property
    def failure_class(self) -> FailureClass | None:
        """The class in status.failure."""

    @property
    def score(self) -> float | None:
        """The same as Scored.score."""

    @property
    def invalid(self) -> bool:
        """The same as Scored.invalid."""

    @property
    def agent_error(self) -> bool:
        """The result of has_agent_error."""

    @property
    def tolerated(self) -> bool:
        """Whether spec.scoring.overrideErrorPolicy says that rewards are valid after the exception that ended the trial."""

    @property
    def tampered(self) -> bool:
        """Whether there is evidence of tampering (engine.status.tampering_findings)."""


def counted_score(trial: Ended, scoring: Scoring) -> float | None:
    """Return the score with which a trial counts in its agent's mean, None if the trial is active or excluded."""
    if trial.state == "Active" or _is_excluded(trial, scoring):
        return None
    return 0.0 if is_zeroed(trial, scoring) else trial.score


def is_zeroed(trial: Ended, scoring: Scoring) -> bool:
    """Return whether a trial counts as 0 and as not passed, because of evidence of tampering or a failure of its model provider."""
    return (trial.tampered and scoring.tampering == "Zero") or _fails_by_provider(trial, scoring)


def _fails_by_provider(trial: Ended, scoring: Scoring) -> bool:
    return trial.failure_class == "Provider" and scoring.provider_errors == "Zero"


def _is_excluded(trial: Ended, scoring: Scoring) -> bool:
    """Return whether the sweep's policy excludes a trial."""
    by_environment = (trial.failure_class in ("Verifier", "Task") and not trial.tolerated) or trial.invalid
    return (
        (trial.score is None and not _fails_by_provider(trial, scoring))
        or (trial.agent_error and scoring.agent_errors == "Exclude")
        or (by_environment and scoring.environment_errors == "Exclude")
        or (trial.tampered and scoring.tampering == "Exclude")
    )


def has_agent_error(status: TrialStatus, overrides: ErrorPolicyOverrides) -> bool:
    """Return whether the agent of any step failed with an exception that spec.scoring.agentErrors decides about: one after which
    Harbor counts no reward. overrides: spec.scoring.overrideErrorPolicy."""
    exceptions = [step.exception for step in status.own_steps if step.exception is not None]
    return any(exception.phase == AGENT and not counts_after(exception.type, overrides) for exception in exceptions)


def failure_class_of(trial: Ended, scoring: Scoring) -> FailureClass | None:
    """Return the class of a trial's failure, None if the trial has none.

    A failure ended the trial, left it without a valid reward, or changed its score.
    """
    if trial.state == "Active" or trial.failure_class is not None:
        return trial.failure_class
    if trial.tampered and scoring.tampering != "Report":
        return "Agent"
    if trial.invalid:
        return "Verifier"
    return "Task" if trial.score is None else None


def agent_may_have_caused(exception: StepException, journal: Journal, *, from_reference: bool = False) -> bool:
    """Return whether an agent may have caused the failure that ended a Complete trial.

    ``from_reference`` means that the steps before the trial's first step (spec.fromStep) were run by the oracle, which runs the
    task's own solutions.
    """
    last = journal.steps[-1] if journal.steps else None
    if last is None or last.trial is not None or exception.type in _BY_THE_TASK_ALONE or last.untouched:
        return False
    ran_before = journal.class_ran_at is not None or any(not from_reference or run.trial is None for run in journal.steps[:-1])
    return ran_before or (exception.phase or last.phase) not in _BEFORE_THE_AGENT


def agent_used_deadline(status: TrialStatus, deadline: float | None, now: float) -> bool:
    """Return whether at least half of the deadline passed in phases whose duration an agent controls. ``deadline`` is in seconds.

    If not, the trial missed its deadline because it waited for the cluster or for a verifier's pod. A trial that waits for the
    model gateway between two phases missed its deadline because of the gateway.
    """
    waits = holds(status, "Reconciling")
    if waits is not None and waits.reason == GATEWAY_UNAVAILABLE and not (status.steps and _in_agent_phase(status.steps[-1])):
        return False
    return deadline is not None and _agent_seconds(status, now) >= _DEADLINE_SHARE * deadline


def _in_agent_phase(step: StepStatus) -> bool:
    return (step.phase or "").lower() == AGENT and AGENT not in _durations(step) and step.start_time is not None


def _agent_seconds(status: TrialStatus, now: float) -> float:
    """Return the seconds of the agents' phases, and of later phases in the agents' environment, which an agent can make slow.

    Such later phases are verifications in that environment, the collection of files, and the setup of later steps. Of the earlier
    attempts, those count that an agent's exception ended: otherwise an agent could fail slowly and be excluded at the deadline.
    """
    again = [attempt.own_steps for attempt in status.attempts if attempt.reason == RETRIED_BY_SPEC]
    return sum(_seconds_of(steps, status, now) for steps in (*again, status.own_steps))


def _seconds_of(steps: Iterable[StepStatus], status: TrialStatus, now: float) -> float:
    """Return the seconds of an attempt's steps that _agent_seconds counts."""
    seconds, ran = 0.0, status.agent_setup_time is not None
    for step in steps:
        took = {**_durations(step), **_running(status, step, now)}
        apart = step.verifier_image_id is not None or (step.completion_time is None and status.verifier is not None)
        skipped = {*(() if ran else _BEFORE_THE_AGENT), *((VERIFIER,) if apart else ())}
        seconds += sum(seconds_taken for phase, seconds_taken in took.items() if phase not in skipped)
        ran = ran or AGENT in took
    return seconds


def _running(status: TrialStatus, step: StepStatus, now: float) -> Mapping[str, float]:
    """Return the name of the step's current phase and its seconds so far; {} if the phase has ended or runs in a verifier's pod."""
    phase = (step.phase or "").lower()
    started = step.phase_start_time or (step.start_time if phase == AGENT else None)
    ended = step.completion_time is not None or (phase == AGENT and AGENT in _durations(step))
    return {} if ended or started is None or status.verifier is not None else {phase: max(0.0, now - started.timestamp())}


def _durations(step: StepStatus) -> Mapping[str, float]:
    return step.phase_seconds.model_dump(exclude_none=True) if step.phase_seconds else {}
