"""Trials as rows of a table: the input of reports, and the rows of CSV, JSON and Parquet files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from sys import float_info, intern
from typing import Any, Literal, get_args

from multistep.api.common.labels import AGENT, ATTEMPT, BRANCH, STEP, TASK
from multistep.api.sweep.sweep import Scoring
from multistep.api.trial.status import StepStatus, TrialStatus, Usage, holds
from multistep.api.trial.trial import parse_status
from multistep.api.trial.values import Outcome
from multistep.engine.score.score_in_sweep import State, counted_score, failure_class_of, is_zeroed
from multistep.engine.score.trial_score import Verdict, known_score, step_passes, step_score
from multistep.engine.score.usage_totals import judge_usage_of_all_attempts, usage_of_all_attempts, user_usage_of_all_attempts
from multistep.engine.status.tampering_findings import evidence
from multistep.engine.sweep.next_trials import TrialFacts, trials_that_count
from multistep.engine.sweep.trial_grid import BranchState
from multistep.engine.sweep.trial_manifests import facts_of, retry_of

_MAX_STEPS = 8  # maximum number of steps that an explanation of a score names


def score_explanation(
    status: TrialStatus, steps: Sequence[StepRow], counts: float | None, scoring: Scoring, *, why: str, zeroed: bool
) -> str:
    """Return how the score ``counts`` was computed; "" for an active trial.

    steps: the steps that the trial ran itself. why: class and reason of the trial's failure. zeroed: whether the sweep's scoring
    makes the trial count 0.
    """
    if status.completion_time is None:
        return ""
    if counts is None:
        return f"excluded, {why}"
    rule = status.score_rule
    if rule is None and status.score is None:
        return f"0 by spec.scoring.providerErrors ({why})"
    if rule is None and not status.score:
        return f"0, as the trial failed ({why})"
    if zeroed:
        return "0 by spec.scoring.tampering, as there is evidence of tampering"
    if rule is None:
        return f"{status.score:.4g}, as in status.score"
    if scoring.strategy == "AsTask":
        return f"the task's own reward, by spec.scoring.strategy: {', '.join(_started(steps))}"
    every = [*_started(steps), *_not_reached(status, len(steps), rule.steps)]
    text = ", ".join(every if len(every) <= _MAX_STEPS else [*every[:_MAX_STEPS], f"and {len(every) - _MAX_STEPS} more"])
    if rule.steps == 1:
        return text
    of = f"{rule.steps} declared steps"
    return f"mean of {of}: {text}" if rule.strategy == "Mean" else f"the last of {of}: {every[-1]}"


def _started(steps: Sequence[StepRow]) -> Iterator[str]:
    for step in steps:
        keys = "" if step.rewards is None or set(step.rewards) == {"reward"} else f" ({_keys(step)})"
        yield f"{step.name} {step.score:.4g}{keys}" if step.rewards is not None else f"{step.name} 0 (no result)"


def _keys(step: StepRow) -> str:
    return ", ".join(f"{key} {value:.4g}" for key, value in (step.rewards or {}).items()) or "no rewards"


def _not_reached(status: TrialStatus, started: int, declared: int) -> Iterator[str]:
    names = status.task_steps[-declared:]
    for index in range(started, declared):
        yield f"{names[index] if index < len(names) else f'step {index + 1}'} 0 (not reached)"


@dataclass(frozen=True, slots=True)
class StepRow:
    """A step that a trial reached."""

    name: str
    rewards: Mapping[str, float] | None
    """All rewards of the step; None without a result."""
    score: float
    passed: bool
    exception: str
    """Type of the step's exception, or ""."""
    message: str
    """Message of the step's exception, or ""."""
    seconds: Mapping[str, float]
    """Durations by phase."""


def step_row(step: StepStatus, key: str | None) -> StepRow:
    """Return the row of a step. key: the only reward that counts, None for the task's own choice."""
    verdict = Verdict(step.rewards, step.gate, known_score(step))
    return StepRow(
        intern(step.name),
        float_rewards(step.rewards),
        step_score(verdict, key),
        step_passes(verdict, key),
        step.exception.type if step.exception else "",
        step.exception.message if step.exception else "",
        step.phase_seconds.model_dump(exclude_none=True) if step.phase_seconds else {},
    )


def float_rewards(rewards: Mapping[str, float] | None) -> dict[str, float] | None:
    """Return the rewards as floats; numbers beyond a float's range become the largest float."""
    if rewards is None:
        return None
    return {intern(key): float(max(-float_info.max, min(float_info.max, reward))) for key, reward in rewards.items()}


@dataclass(frozen=True, slots=True)
class TrialRow:
    """The facts about a trial that reports and a sweep's retries use."""

    namespace: str
    trial: str
    task: str
    agent: str
    program: str
    """spec.agent.name or spec.agent.importPath, e.g. oracle."""
    attempt: int
    state: State
    outcome: Outcome | Literal[""]
    """How the trial ended, "" while the trial is active."""
    rewards: Mapping[str, float] | None
    """The task's own rewards."""
    counts: float | None
    """The score with which the trial enters the mean, None if the trial is excluded or has not finished."""
    passed: bool | None
    """Whether the trial passed, None if ``counts`` is None."""
    how: str
    """How ``counts`` was computed, on one line."""
    failure_class: str
    """Class of the trial's failure, or ""."""
    reason: str
    """Reason of the trial's failure, or ""."""
    message: str
    """Message of the trial's condition Failed or Complete, or ""."""
    seconds: float | None
    """Duration of the trial, None if the trial has not finished."""
    failed_attempts: int
    """Number of failed attempts before the last one."""
    content: str
    """Digest of the task, if known."""
    results: str
    """URL of the trial's files in an object store."""
    steps: tuple[StepRow, ...]
    input_tokens: int | None = None
    """Tokens of the agent's model requests in all attempts, None if unknown."""
    output_tokens: int | None = None
    cost_usd: float | None = None
    """Cost of the agent's model requests in all attempts, None if unknown."""
    incomplete_requests: int | None = None
    """Number of requests whose usage the gateway does not know. The tokens and the cost do not include these."""
    counted_by: str = ""
    """Who counted the tokens and the cost: Gateway or Agent, or "" if unknown."""
    judge_requests: int | None = None
    """Number of the judge's model requests in all attempts. The agent's amounts do not include them. None if there were none."""
    judge_input_tokens: int | None = None
    judge_output_tokens: int | None = None
    judge_cost_usd: float | None = None
    """Cost of the judge's model requests, None if unknown or if there were none."""
    user_requests: int | None = None
    """Number of the simulated user's model requests in all attempts. The agent's amounts do not include them. None if there were
    none."""
    user_input_tokens: int | None = None
    user_output_tokens: int | None = None
    user_cost_usd: float | None = None
    """Cost of the simulated user's model requests, None if unknown or if there were none."""
    tampering: str = ""
    """Kinds of evidence of tampering, separated by spaces; "" if there is none."""
    branch: BranchState | Literal[""] = ""
    """State from which a branch starts, "" for an ordinary trial."""
    step: str = ""
    """A branch's only step."""
    step_number: int = 0
    """The number of that step in the task, from 1; 0 if unknown."""
    source: str = ""
    """Name of the trial from whose state a branch starts, or ""."""
    number: int = -1
    """Number of the trial in the sweep, -1 if unknown."""
    retry_of: int | None = None
    """Number of the trial that this retry repeats, None if the trial is not a retry."""

    @property
    def excluded(self) -> bool:
        """Whether the trial is excluded: it has finished and is not scored."""
        return self.state != "Active" and self.counts is None

    @property
    def scored_failure(self) -> bool:
        """Whether the trial is scored although a failure ended it."""
        return self.counts is not None and self.failure_class != ""


def trial_row(trial: Mapping[str, Any], scoring: Scoring | None = None) -> TrialRow:
    """Return the row of a MultiStepTrial. scoring: the sweep's scoring. Raises InvalidSpec if the status is invalid."""
    return row_of(trial, parse_status(trial), scoring or Scoring())


def row_of(trial: Mapping[str, Any], status: TrialStatus, scoring: Scoring) -> TrialRow:
    """Return the row of a MultiStepTrial. status: its parsed status."""
    metadata = trial["metadata"]
    annotations = metadata.get("annotations") or {}
    task = (trial.get("spec") or {}).get("task") or {}
    known = facts_of(trial, status, scoring)
    counts = counted_score(known, scoring)
    failure_class = failure_class_of(known, scoring) or ("Agent" if counts is None and known.state != "Active" else "")
    agent = (trial.get("spec") or {}).get("agent") or {}
    program = agent.get("name") or agent.get("importPath") or "oracle"
    reason = _reason(status, known, scoring) if failure_class else ""
    steps = tuple(step_row(step, scoring.key) for step in status.own_steps)
    zeroed = is_zeroed(known, scoring)
    return TrialRow(
        namespace=metadata.get("namespace", ""),
        trial=metadata["name"],
        task=annotations.get(TASK) or task.get("name") or status.task or metadata["name"],
        agent=annotations.get(AGENT) or program,
        program=program,
        attempt=_whole(annotations.get(ATTEMPT)),
        state=known.state,
        outcome=_outcome(status, counts, zeroed=zeroed),
        rewards=float_rewards(status.rewards),
        counts=counts,
        passed=None if counts is None else known.passed and not zeroed,
        how=score_explanation(status, steps, counts, scoring, why=f"{failure_class}: {reason}", zeroed=zeroed),
        failure_class=failure_class,
        reason=reason,
        message=_message(status),
        seconds=_between(status.start_time, status.completion_time),
        failed_attempts=len(status.attempts),
        content=status.task_source.digest if status.task_source else (task.get("bundle") or {}).get("digest") or "",
        results=status.results_store or "",
        steps=steps,
        **_usage(status),
        tampering=" ".join(evidence(finding.kind for finding in status.tampering)),
        **_place(trial, known, status.task_steps),
    )


def _usage(status: TrialStatus) -> dict[str, Any]:
    """Return the row's usage fields, summed over the model requests of all attempts, those of no usage left out."""
    used = usage_of_all_attempts(status)
    others = {
        **_usage_of_role("judge", judge_usage_of_all_attempts(status)),
        **_usage_of_role("user", user_usage_of_all_attempts(status)),
    }
    if used is None:
        return others
    return {
        **others,
        "input_tokens": used.input_tokens,
        "output_tokens": used.output_tokens,
        "cost_usd": used.cost_usd,
        "incomplete_requests": used.incomplete,
        "counted_by": used.source,
    }


def _usage_of_role(role: str, used: Usage | None) -> dict[str, Any]:
    if used is None:
        return {}
    return {
        f"{role}_requests": used.requests,
        f"{role}_input_tokens": used.input_tokens,
        f"{role}_output_tokens": used.output_tokens,
        f"{role}_cost_usd": used.cost_usd,
    }


def _outcome(status: TrialStatus, counts: float | None, *, zeroed: bool) -> Outcome | Literal[""]:
    """Return how a trial ended, under the sweep's scoring. zeroed: whether the scoring makes it count 0."""
    if status.outcome is None:
        return ""
    if counts is None and status.outcome != "Unverified":
        return "Excluded"
    return "NotPassed" if zeroed and status.outcome in ("Passed", "Excluded") else status.outcome


def _message(status: TrialStatus) -> str:
    condition = holds(status, "Failed") or holds(status, "Complete")
    return condition.message if condition else ""


def rows_that_count(trials: Iterable[TrialRow]) -> list[TrialRow]:
    """Return the rows of the trials that count: one row of each trial of a sweep and its retries, and the rows of all trials that
    are not numbered by a sweep."""
    rows = list(trials)
    numbered = [row for row in rows if row.number >= 0]
    chosen = trials_that_count(((sweep_number(row), row.number, row) for row in numbered), lambda row: row.counts is not None)
    return [row for row in rows if row.number < 0 or chosen[sweep_number(row)] is row]


def sweep_number(row: TrialRow) -> int:
    """Return a trial's number in the sweep; for a retry, the number of the trial that it repeats."""
    return row.number if row.retry_of is None else row.retry_of


def _place(trial: Mapping[str, Any], known: TrialFacts, steps: Sequence[str]) -> dict[str, Any]:
    return {"number": known.number, "retry_of": retry_of(trial), **_branch(trial, steps)}


def _branch(trial: Mapping[str, Any], steps: Sequence[str]) -> dict[str, Any]:
    """Return the fields of a branch, {} for an ordinary trial."""
    metadata = trial["metadata"]
    state, step = (metadata.get("labels") or {}).get(BRANCH), (metadata.get("annotations") or {}).get(STEP)
    if state not in get_args(BranchState) or not step:
        return {}
    source = ((trial.get("spec") or {}).get("from") or {}).get("trial") or ""
    number = steps.index(step) + 1 if step in steps else 0
    return {"branch": state, "step": intern(step), "step_number": number, "source": intern(source)}


def row_order(row: TrialRow) -> tuple[str, str, int, str, str, int, str]:
    """Return the sort key of a row."""
    return row.task, row.agent, row.step_number, row.step, row.branch, row.attempt, row.trial


def _reason(status: TrialStatus, known: TrialFacts, scoring: Scoring) -> str:
    """Return the reason why a trial failed, is excluded or counts 0. The reason is AgentError if the agent failed and scoring
    excludes trials whose agent failed."""
    if status.failure:
        return status.failure.reason
    if known.tampered and scoring.tampering != "Report":
        return "Tampering"
    if known.invalid:
        return "RewardOmitted" if known.score is None else "RewardTooLarge"
    return "NoReward" if known.score is None else "AgentError"


def _between(start: datetime | None, end: datetime | None) -> float | None:
    return (end - start).total_seconds() if start and end else None


def _whole(text: str | None) -> int:
    """Return the number in an annotation, whose text is untrusted; 1 if the text is not a whole number of at most 9 digits."""
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 10 else 1


FEWEST = 6  # minimum number of tasks for which a difference can be significant
