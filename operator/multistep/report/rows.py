"""Trials as rows of a table: what a report is made of, and what CSV, JSON and Parquet hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from sys import float_info, intern
from typing import Any, Literal

from ..api.labels import AGENT, ATTEMPT, TASK
from ..api.sweep import Scoring
from ..api.trial import parse_status
from ..api.trial_status import StepStatus, TrialStatus
from ..engine.scoring import REWARD, blamed, counted_reward, is_too_large
from ..engine.sweep_trials import facts

PASS = 1.0  # the least reward that is a pass


@dataclass(frozen=True, slots=True)
class StepRow:
    """A step that was reached. passed: by its gate, or with a reward of 1 or more where it has none. seconds: by phase."""

    name: str
    reward: float | None
    passed: bool
    exception: str
    seconds: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Row:
    """A trial. counts: what it adds to the mean, None: it is excluded, or has not finished; blame, reason: what kept it from its
    reward, or from its end; program: what the agent runs, as oracle.

    seconds: from its start to its end, None before; lost_attempts: pods that were lost before the last one;
    content: digest of the task, as far as it is known; results: where its files are in an object store.
    """

    namespace: str
    trial: str
    task: str
    agent: str
    program: str
    attempt: int
    state: Literal["Live", "Complete", "Failed"]
    reward: float | None
    counts: float | None
    blame: str
    reason: str
    seconds: float | None
    lost_attempts: int
    content: str
    results: str
    steps: tuple[StepRow, ...]

    @property
    def lost(self) -> bool:
        """Whether it is excluded: it has finished, and does not count."""
        return self.state != "Live" and self.counts is None

    @property
    def scored_failure(self) -> bool:
        """Whether it counts though a failure kept it from its reward."""
        return self.counts is not None and self.blame != ""


def row(trial: Mapping[str, Any], scoring: Scoring | None = None) -> Row:
    """Return the row of a MultiStepTrial. scoring: of its sweep. InvalidSpec: its status cannot be read."""
    status, metadata = parse_status(trial), trial["metadata"]
    noted = metadata.get("annotations") or {}
    task = (trial.get("spec") or {}).get("task") or {}
    known, reward = facts(trial), _float((status.rewards or {}).get(REWARD))
    counts = counted_reward(known, scoring or Scoring())
    blame = blamed(known) or ("Agent" if counts is None and known.state != "Live" else "")
    program = ((trial.get("spec") or {}).get("agent") or {}).get("name") or "oracle"
    return Row(
        namespace=metadata.get("namespace", ""),
        trial=metadata["name"],
        task=noted.get(TASK) or task.get("name") or status.task or metadata["name"],
        agent=noted.get(AGENT) or program,
        program=program,
        attempt=_whole(noted.get(ATTEMPT)),
        state=known.state,
        reward=reward,
        counts=counts,
        blame=blame,
        reason=_reason(status, reward) if blame else "",
        seconds=_between(status.start_time, status.completion_time),
        lost_attempts=len(status.attempts),
        content=status.task_source.digest if status.task_source else (task.get("bundle") or {}).get("digest") or "",
        results=status.results_store or "",
        steps=tuple(map(_step, status.steps)),
    )


def in_order(found: Row) -> tuple[str, str, int, str]:
    """The key to sort rows by."""
    return found.task, found.agent, found.attempt, found.trial


def _reason(status: TrialStatus, reward: float | None) -> str:
    """Why a trial has a class of failure. AgentError: an earlier step's, for which the sweep excludes the trial."""
    if status.failure:
        return status.failure.reason
    return "NoReward" if reward is None else "RewardTooLarge" if is_too_large(reward) else "AgentError"


def _step(step: StepStatus) -> StepRow:
    reward = _float((step.rewards or {}).get(REWARD))
    passed = step.gate if step.gate is not None else reward is not None and reward >= PASS
    seconds = step.durations.model_dump(exclude_none=True) if step.durations else {}
    sensible = None if is_too_large(reward) else reward
    return StepRow(intern(step.name), sensible, passed, step.exception.type if step.exception else "", seconds)


def _float(number: float | None) -> float | None:
    """What no float can hold becomes the largest."""
    return None if number is None else float(max(-float_info.max, min(float_info.max, number)))


def _between(start: datetime | None, end: datetime | None) -> float | None:
    return (end - start).total_seconds() if start and end else None


def _whole(text: str | None) -> int:
    """Anybody may write annotations."""
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 10 else 1
