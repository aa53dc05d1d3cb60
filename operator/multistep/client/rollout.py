"""A finished trial as the Python client returns it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from multistep.api.sweep.sweep import Scoring
from multistep.api.trial.status_values import Outcome
from multistep.api.trial.trial import parse_status
from multistep.report.rows import Row, row


@dataclass(frozen=True)
class Step:
    """A step that the trial itself ran. rewards: the verifier's rewards by key, None without a verdict; score: the step's part of
    the trial's reward; passed: whether the step met its gate or, without a gate, has a reward >= 1; exception: type of the step's
    exception, or ""."""

    name: str
    rewards: Mapping[str, float] | None
    score: float
    passed: bool
    exception: str


@dataclass(frozen=True)
class Rollout:
    """A finished trial.

    A failure that no agent can have caused (infrastructure, provider, a defective task, a stop) makes the rollout invalid: its
    ``reward`` is None, never 0, and training must mask it. With a failure that the agent may have caused, the rollout is valid, and
    each step without a verdict counts 0.
    """

    name: str
    """Name of the trial: `multistep show NAME`."""
    namespace: str
    task: str
    """Name of the task in the sweep."""
    agent: str
    """Name of the agent in the sweep."""
    attempt: int
    """Number of the trial among the trials of the same task and agent, from 1."""
    valid: bool
    """Whether the trial counts, so that ``reward`` is a number. False for example after an infrastructure failure."""
    reward: float | None
    """The trial's score, as `multistep sweep report` counts it: over all declared steps, so that quitting early never pays. None if
    not valid."""
    passed: bool | None
    """Whether every declared step ran and passed; None if not valid."""
    outcome: Outcome
    """How the trial ended, for example Passed, NotPassed, GateNotMet, AgentError or Excluded."""
    rewards: Mapping[str, float] | None
    """The task's own rewards by key; None if the trial has none."""
    steps: tuple[Step, ...]
    """The steps that ran, in order."""
    failure_class: str
    """Who caused the trial's failure, for example Agent or Infrastructure; "" without a failure."""
    reason: str
    """Reason of the trial's failure, for example PodDeleted; "" without a failure."""
    message: str
    """Message of the trial's condition Failed or Complete."""
    input_tokens: int | None
    output_tokens: int | None
    cost_usd: float | None
    """Cost of the model requests of all attempts, in US dollars; None if unknown."""
    results: str | None
    """URI of the trial's result files, which ``file`` and ``fetch`` of the client read. It contains an access token: keep it
    private."""


def rollout(trial: Mapping[str, Any], scoring: Scoring) -> Rollout:
    """Return the rollout of a finished MultiStepTrial. scoring: the sweep's spec.scoring."""
    found = row(trial, scoring)
    return Rollout(
        name=found.trial,
        namespace=found.namespace,
        task=found.task,
        agent=found.agent,
        attempt=found.attempt,
        valid=found.counts is not None,
        reward=found.counts,
        passed=found.passed,
        outcome=found.outcome or "Excluded",
        rewards=found.rewards,
        steps=_steps(found),
        failure_class=found.failure_class,
        reason=found.reason,
        message=found.message,
        input_tokens=found.input_tokens,
        output_tokens=found.output_tokens,
        cost_usd=found.cost_usd,
        results=parse_status(trial).results,
    )


def _steps(found: Row) -> tuple[Step, ...]:
    return tuple(Step(each.name, each.rewards, each.score, each.passed, each.exception) for each in found.steps)
