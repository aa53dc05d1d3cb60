"""Trials as rows of a table: what a report is made of, and what CSV, JSON and Parquet hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from ..api.labels import AGENT, ATTEMPT, TASK
from ..api.trial import StepStatus, TrialStatus, parse_status
from ..engine.sweeps import TrialFacts, counted_reward

REWARD = "reward"  # the key that means are of


@dataclass(frozen=True)
class StepRow:
    """A step that was reached. passed: by its gate, or with a reward of 1 or more where it has none. seconds: by phase."""

    name: str
    reward: float | None
    passed: bool
    exception: str
    seconds: Mapping[str, float]


@dataclass(frozen=True)
class Row:
    """A trial. counts: what it adds to the mean, None: it does not count; blame, reason: of what kept it from its reward.

    seconds: from its start to its end, None before.
    """

    namespace: str
    trial: str
    task: str
    agent: str
    attempt: int
    state: Literal["Live", "Complete", "Failed"]
    reward: float | None
    counts: float | None
    blame: str
    reason: str
    seconds: float | None
    attempts: int
    steps: tuple[StepRow, ...]

    @property
    def passed(self) -> bool:
        """Whether it counts as a pass: a reward of 1 or more."""
        return self.counts is not None and self.counts >= 1


def rows(trials: Iterable[Mapping[str, Any]]) -> list[Row]:
    """A row for each MultiStepTrial, in the order of task, agent and attempt. InvalidSpec: a status cannot be read."""
    return sorted(map(_row, trials), key=lambda row: (row.task, row.agent, row.attempt, row.trial))


def _row(trial: Mapping[str, Any]) -> Row:
    status, metadata = parse_status(trial), trial["metadata"]
    noted = metadata.get("annotations") or {}
    spec = trial.get("spec") or {}
    state, reward = _state(status), (status.rewards or {}).get(REWARD)
    blame = status.failure.class_ if status.failure else None
    return Row(
        namespace=metadata.get("namespace", ""),
        trial=metadata["name"],
        task=noted.get(TASK) or (spec.get("task") or {}).get("name") or status.task or metadata["name"],
        agent=noted.get(AGENT) or (spec.get("agent") or {}).get("name") or "oracle",
        attempt=int(noted.get(ATTEMPT) or 1),
        state=state,
        reward=reward,
        counts=counted_reward(TrialFacts(0, state, reward, blame)),
        blame=blame or "",
        reason=status.failure.reason if status.failure else "",
        seconds=_between(status.start_time, status.completion_time),
        attempts=status.attempt or 0,
        steps=tuple(map(_step, status.steps)),
    )


def _state(status: TrialStatus) -> Literal["Live", "Complete", "Failed"]:
    holding = {each.type for each in status.conditions if each.status == "True"}
    return "Complete" if "Complete" in holding else "Failed" if "Failed" in holding else "Live"


def _step(step: StepStatus) -> StepRow:
    reward = (step.rewards or {}).get(REWARD)
    passed = step.gate if step.gate is not None else reward is not None and reward >= 1
    seconds = step.durations.model_dump(exclude_none=True) if step.durations else {}
    return StepRow(step.name, reward, passed, step.exception.type if step.exception else "", seconds)


def _between(start: datetime | None, end: datetime | None) -> float | None:
    return (end - start).total_seconds() if start and end else None
