"""The steps of a trial's row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from sys import float_info, intern

from multistep.api.trial.status import StepStatus
from multistep.engine.score.trial_score import Verdict, known_score, step_passes, step_score


@dataclass(frozen=True, slots=True)
class StepRow:
    """A step that a trial reached. rewards: all of its rewards, None without a result; score: its score; passed: whether it
    passed; exception, message: type and message of its exception, or ""; seconds: durations by phase."""

    name: str
    rewards: Mapping[str, float] | None
    score: float
    passed: bool
    exception: str
    message: str
    seconds: Mapping[str, float]


def step_row(step: StepStatus, key: str | None) -> StepRow:
    """Return the row of a step. key: the only reward that counts, None for the task's own choice."""
    verdict = Verdict(step.rewards, step.gate, known_score(step))
    return StepRow(
        intern(step.name),
        floats(step.rewards),
        step_score(verdict, key),
        step_passes(verdict, key),
        step.exception.type if step.exception else "",
        step.exception.message if step.exception else "",
        step.durations.model_dump(exclude_none=True) if step.durations else {},
    )


def floats(rewards: Mapping[str, float] | None) -> dict[str, float] | None:
    """Return the rewards as floats; numbers beyond a float's range become the largest float."""
    if rewards is None:
        return None
    return {intern(key): float(max(-float_info.max, min(float_info.max, each))) for key, each in rewards.items()}
