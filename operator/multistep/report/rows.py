"""Trials as rows of a table: what a report is made of, and what CSV, JSON and Parquet hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from sys import float_info, intern
from typing import Any, Literal

from ..api.labels import AGENT, ATTEMPT, TASK
from ..api.trial import parse_status
from ..api.trial_status import StepStatus, TrialStatus
from ..engine.sweeps import MOST_REWARD, TrialFacts, counted_reward

REWARD = "reward"  # the key of rewards that means are of
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
    """A trial. counts: what it adds to the mean, None: it does not count; blame, reason: what kept it from that, or from its end.

    seconds: from its start to its end, None before; lost_attempts: pods that were lost before the last one;
    content: digest of the task, as far as it is known; results: where its files are in an object store.
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
    lost_attempts: int
    content: str
    results: str
    steps: tuple[StepRow, ...]

    @property
    def lost(self) -> bool:
        """Whether it is over, and does not count."""
        return self.state != "Live" and self.counts is None


def row(trial: Mapping[str, Any]) -> Row:
    """Of a MultiStepTrial. InvalidSpec: its status cannot be read."""
    status, metadata = parse_status(trial), trial["metadata"]
    noted = metadata.get("annotations") or {}
    task = (trial.get("spec") or {}).get("task") or {}
    state, reward = _state(status), _float((status.rewards or {}).get(REWARD))
    blame = status.failure.class_ if status.failure else None
    counts = counted_reward(TrialFacts(0, state, reward, blame))
    if state == "Complete" and counts is None:
        blame = blame or "Task"  # it gave no reward that counts
    return Row(
        namespace=metadata.get("namespace", ""),
        trial=metadata["name"],
        task=noted.get(TASK) or task.get("name") or status.task or metadata["name"],
        agent=noted.get(AGENT) or ((trial.get("spec") or {}).get("agent") or {}).get("name") or "oracle",
        attempt=_whole(noted.get(ATTEMPT)),
        state=state,
        reward=reward,
        counts=counts,
        blame=blame or "",
        reason=_reason(status, reward),
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
    if status.failure:
        return status.failure.reason
    if _state(status) != "Complete":
        return ""
    return "NoReward" if reward is None else "RewardTooLarge" if abs(reward) > MOST_REWARD else ""


def _state(status: TrialStatus) -> Literal["Live", "Complete", "Failed"]:
    holding = {each.type for each in status.conditions if each.status == "True"}
    return "Complete" if "Complete" in holding else "Failed" if "Failed" in holding else "Live"


def _step(step: StepStatus) -> StepRow:
    reward = _float((step.rewards or {}).get(REWARD))
    passed = step.gate if step.gate is not None else reward is not None and reward >= PASS
    seconds = step.durations.model_dump(exclude_none=True) if step.durations else {}
    sensible = reward if reward is not None and abs(reward) <= MOST_REWARD else None
    return StepRow(intern(step.name), sensible, passed, step.exception.type if step.exception else "", seconds)


def _float(number: float | None) -> float | None:
    """What no float can hold becomes the largest."""
    return None if number is None else float(max(-float_info.max, min(float_info.max, number)))


def _between(start: datetime | None, end: datetime | None) -> float | None:
    return (end - start).total_seconds() if start and end else None


def _whole(text: str | None) -> int:
    """Anybody may write annotations."""
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 10 else 1
