"""Trials as rows of a table: the input of reports, and the rows of CSV, JSON and Parquet files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from sys import float_info, intern
from typing import Any, Literal, get_args

from multistep.api.labels import AGENT, ATTEMPT, BRANCH, STEP, TASK
from multistep.api.sweep import Scoring
from multistep.api.trial import parse_status
from multistep.api.trial_status import StepStatus, TrialStatus
from multistep.engine.scoring import REWARD, counted_reward, failure_class_of, is_too_large
from multistep.engine.sweep_trials import facts
from multistep.engine.sweeps import BranchState
from multistep.engine.tampering import evidence
from multistep.engine.usage import total

PASS = 1.0  # minimum reward of a pass


@dataclass(frozen=True, slots=True)
class StepRow:
    """A step that a trial reached. passed: whether it met its gate or, without a gate, has a reward >= 1. seconds: durations by
    phase."""

    name: str
    reward: float | None
    passed: bool
    exception: str
    seconds: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Row:
    """A trial. counts: the reward that the mean includes; None: the trial is excluded or has not finished. failure_class, reason:
    class and reason of its failure, or ""; program: spec.agent.name, e.g. oracle.

    seconds: duration, None if it has not finished; failed_attempts: number of failed attempts before the last one;
    content: digest of the task, if known; results: URL of its files in an object store. input_tokens, output_tokens, cost_usd: what
    its agent's model requests used in all attempts, None if unknown; counted_by: what counted
    them, Gateway or Agent; "" if nothing did. tampering: kinds of evidence of tampering, separated by spaces; "" if there is none.
    branch: state from which a branch starts, "" for an ordinary trial; step: the only step that it runs; step_number: its number in
    the task, from 1, 0 if unknown; source: name of the trial whose state it starts from, "" without one.
    """

    namespace: str
    trial: str
    task: str
    agent: str
    program: str
    attempt: int
    state: Literal["Active", "Complete", "Failed"]
    reward: float | None
    counts: float | None
    failure_class: str
    reason: str
    seconds: float | None
    failed_attempts: int
    content: str
    results: str
    steps: tuple[StepRow, ...]
    input_tokens: int | None = None
    output_tokens: int | None = None
    cost_usd: float | None = None
    counted_by: str = ""
    tampering: str = ""
    branch: BranchState | Literal[""] = ""
    step: str = ""
    step_number: int = 0
    source: str = ""

    @property
    def excluded(self) -> bool:
        """Whether the trial is excluded: it has finished and is not scored."""
        return self.state != "Active" and self.counts is None

    @property
    def scored_failure(self) -> bool:
        """Whether the trial is scored although a failure ended it."""
        return self.counts is not None and self.failure_class != ""


def row(trial: Mapping[str, Any], scoring: Scoring | None = None) -> Row:
    """Return the row of a MultiStepTrial. scoring: the sweep's scoring. Raises InvalidSpec if the status is invalid."""
    status, metadata = parse_status(trial), trial["metadata"]
    annotations = metadata.get("annotations") or {}
    task = (trial.get("spec") or {}).get("task") or {}
    known, reward, scoring = facts(trial), _float((status.rewards or {}).get(REWARD)), scoring or Scoring()
    counts = counted_reward(known, scoring)
    failure_class = failure_class_of(known, scoring) or ("Agent" if counts is None and known.state != "Active" else "")
    agent = (trial.get("spec") or {}).get("agent") or {}
    program = agent.get("name") or agent.get("importPath") or "oracle"
    used = total(step.usage for steps in status.steps_by_attempt().values() for step in steps)
    return Row(
        namespace=metadata.get("namespace", ""),
        trial=metadata["name"],
        task=annotations.get(TASK) or task.get("name") or status.task or metadata["name"],
        agent=annotations.get(AGENT) or program,
        program=program,
        attempt=_whole(annotations.get(ATTEMPT)),
        state=known.state,
        reward=reward,
        counts=counts,
        failure_class=failure_class,
        reason=_reason(status, reward, tampered=known.tampered and scoring.tampering != "Report") if failure_class else "",
        seconds=_between(status.start_time, status.completion_time),
        failed_attempts=len(status.attempts),
        content=status.task_source.digest if status.task_source else (task.get("bundle") or {}).get("digest") or "",
        results=status.results_store or "",
        steps=tuple(map(_step, status.own_steps)),
        input_tokens=used.input_tokens if used else None,
        output_tokens=used.output_tokens if used else None,
        cost_usd=used.cost_usd if used else None,
        counted_by=used.source if used else "",
        tampering=" ".join(evidence(each.kind for each in status.tampering)),
        **_branch(trial, status.task_steps),
    )


def _branch(trial: Mapping[str, Any], steps: Sequence[str]) -> dict[str, Any]:
    """Return the fields of a branch, {} for an ordinary trial."""
    metadata = trial["metadata"]
    state, step = (metadata.get("labels") or {}).get(BRANCH), (metadata.get("annotations") or {}).get(STEP)
    if state not in get_args(BranchState) or not step:
        return {}
    source = ((trial.get("spec") or {}).get("from") or {}).get("trial") or ""
    number = steps.index(step) + 1 if step in steps else 0
    return {"branch": state, "step": intern(step), "step_number": number, "source": intern(source)}


def in_order(found: Row) -> tuple[str, str, int, str, str, int, str]:
    """Return the sort key of a row."""
    return found.task, found.agent, found.step_number, found.step, found.branch, found.attempt, found.trial


def _reason(status: TrialStatus, reward: float | None, *, tampered: bool) -> str:
    """Return the reason why a trial failed, is excluded or counts 0. AgentError: the agent failed, and scoring excludes such
    trials.

    tampered: whether scoring excludes the trial or sets it to 0 because of evidence of tampering.
    """
    if status.failure:
        return status.failure.reason
    if tampered:
        return "Tampering"
    return "NoReward" if reward is None else "RewardTooLarge" if is_too_large(reward) else "AgentError"


def _step(step: StepStatus) -> StepRow:
    reward = _float((step.rewards or {}).get(REWARD))
    passed = step.gate if step.gate is not None else reward is not None and reward >= PASS
    seconds = step.durations.model_dump(exclude_none=True) if step.durations else {}
    sensible = None if is_too_large(reward) else reward
    return StepRow(intern(step.name), sensible, passed, step.exception.type if step.exception else "", seconds)


def _float(number: float | None) -> float | None:
    """Return the number as a float; numbers beyond a float's range become the largest float."""
    return None if number is None else float(max(-float_info.max, min(float_info.max, number)))


def _between(start: datetime | None, end: datetime | None) -> float | None:
    return (end - start).total_seconds() if start and end else None


def _whole(text: str | None) -> int:
    """Return the number in an annotation, whose text is untrusted; 1 if the text is not a whole number of at most 9 digits."""
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 10 else 1
