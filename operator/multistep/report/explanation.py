"""Explains on one line how a trial's score was computed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from multistep.api.sweep.sweep import Scoring
from multistep.api.trial.status import TrialStatus
from multistep.report.step_row import StepRow

_MAX_STEPS = 8  # maximum number of steps that the line names


def explanation(
    status: TrialStatus, steps: Sequence[StepRow], counts: float | None, scoring: Scoring, *, why: str, zeroed: bool
) -> str:
    """Return how the score ``counts`` was computed; "" for an active trial. steps: the steps that the trial ran itself;
    why: class and reason of the trial's failure; zeroed: whether the scoring makes it count 0."""
    if status.completion_time is None:
        return ""
    if counts is None:
        return f"excluded, {why}"
    rule = status.score_rule
    if rule is None and status.score is None:
        return f"0 by spec.scoring.providerErrors ({why})"
    if rule is None:
        return f"0, as the trial failed ({why})"
    if zeroed:
        return "0 by spec.scoring.tampering, as there is evidence of tampering"
    if scoring.strategy == "AsTask":
        return f"the task's own reward, by spec.scoring.strategy: {', '.join(_started(steps))}"
    every = [*_started(steps), *_not_reached(status, len(steps), rule.steps)]
    text = ", ".join(every if len(every) <= _MAX_STEPS else [*every[:_MAX_STEPS], f"and {len(every) - _MAX_STEPS} more"])
    if rule.steps == 1:
        return text
    of = f"{rule.steps} declared steps"
    return f"mean of {of}: {text}" if rule.strategy == "Mean" else f"the last of {of}: {every[-1]}"


def _started(steps: Sequence[StepRow]) -> Iterator[str]:
    for each in steps:
        keys = "" if each.rewards is None or set(each.rewards) == {"reward"} else f" ({_keys(each)})"
        yield f"{each.name} {each.score:.4g}{keys}" if each.rewards is not None else f"{each.name} 0 (no result)"


def _keys(step: StepRow) -> str:
    return ", ".join(f"{key} {value:.4g}" for key, value in (step.rewards or {}).items()) or "no rewards"


def _not_reached(status: TrialStatus, started: int, declared: int) -> Iterator[str]:
    names = status.task_steps[-declared:]
    for index in range(started, declared):
        yield f"{names[index] if index < len(names) else f'step {index + 1}'} 0 (not reached)"
