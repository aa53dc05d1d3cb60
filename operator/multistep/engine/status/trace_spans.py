"""Builds the trace of a finished trial: spans of the trial, its attempts, steps, phases and model requests. All functions are pure.

Ids are derived from the trial's UID, so the export is idempotent. Times come from the status in whole seconds, and only the
durations of phases are more precise. The phases of a step follow each other from the step's start.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from multistep.api.trial.status import AttemptStatus, StepStatus, TrialStatus
from multistep.api.trial.trial import MultiStepTrial

Value = str | int | float
_MAX_MODEL_CHARACTERS: Final = 200
_PROVIDERS: Final = {"gemini": "gcp.gemini"}  # the names of the semantic conventions that differ from those of the gateway
_LATEST: Final = 2**63 / 1e9
"""The latest time of a span that OTLP can represent. Times are limited to it, because a runner may report any time."""


@dataclass(frozen=True)
class Span:
    """A span of a trace. Times are in seconds since the epoch."""

    id: str
    """Id of the span, 16 hexadecimal digits."""
    parent: str
    """Id of the parent span, "" for the trial's span."""
    name: str
    start: float
    end: float
    attributes: Mapping[str, Value] = field(default_factory=dict)
    error: str = ""
    """Reason or type of the failure, "" without one."""
    client: bool = False
    """Whether the span is of a request to another service."""


@dataclass(frozen=True)
class ModelRequest:
    """A model request of a trial, as the model gateway recorded it. Times are in seconds since the epoch."""

    id: str
    attempt: int
    access: str
    """The step's name for requests of its agent and simulated user. Otherwise a name that is no step's."""
    role: str
    """agent, user or judge."""
    provider: str
    """Provider whose API the request uses, e.g. anthropic."""
    model: str
    """The requested model. The agent chose the text."""
    start: float
    end: float
    input_tokens: int | None
    """Unknown usage is None here and in the next two fields."""
    cached_tokens: int | None
    output_tokens: int | None
    held_seconds: float
    """Time for which the request was queued."""
    error: str
    """The HTTP status of an error, or how the request ended without an answer; "" for an answered request."""


def trace_id(uid: str) -> str:
    """Return the trace id, which is the trial's UID without hyphens, so that a user who knows the UID finds the trace.

    It has 32 hexadecimal digits.
    """
    digits = uid.replace("-", "").lower()
    known = len(digits) == 32 and set(digits) <= set("0123456789abcdef") and set(digits) != {"0"}
    return digits if known else hashlib.sha256(uid.encode()).hexdigest()[:32]


def spans(trial: MultiStepTrial, requests: Sequence[ModelRequest] = ()) -> list[Span]:
    """Return the spans of a finished trial, starting with the trial's own span. ``requests`` are the trial's model requests."""
    status, end = trial.status, _seconds(trial.status.completion_time)
    start = _seconds(trial.metadata.creation_timestamp) or _seconds(status.start_time) or end
    if start is None or end is None:
        return []
    error = status.failure.reason if status.failure else ""
    root = Span(_id(trial), "", f"trial {trial.metadata.name}", start, max(start, end), _of_trial(trial), error)
    steps = status.steps_by_attempt()
    found = [root, *(span for each in _attempts(status) for span in _of_attempt(trial, each, steps[each.number], root))]
    known = {span.id for span in found}
    return [*found, *(_of_request(trial, each, known) for each in requests)]


def _attempts(status: TrialStatus) -> list[AttemptStatus]:
    """Return all attempts, including the last one, which status.attempts has only if it failed."""
    former = status.attempts
    if status.attempt is None or any(each.number == status.attempt for each in former):
        return former
    last = AttemptStatus(
        number=status.attempt,
        pod_name=status.pod_name,
        node_name=status.node_name,
        start_time=former[-1].completion_time if former else status.start_time,
        completion_time=status.completion_time,
    )
    return [*former, last]


def _of_attempt(trial: MultiStepTrial, attempt: AttemptStatus, steps: Sequence[StepStatus], root: Span) -> Iterator[Span]:
    start = _seconds(attempt.start_time) or root.start
    end = max(start, _seconds(attempt.completion_time) or root.end)
    named = {"k8s.pod.name": attempt.pod_name, "k8s.node.name": attempt.node_name, "multistep.reason": attempt.reason}
    id, attributes = _id(trial, attempt.number), {name: value for name, value in named.items() if value}
    yield Span(id, root.id, f"attempt {attempt.number}", start, end, attributes, attempt.reason or "")
    for step in steps:
        yield from _of_step(trial, attempt.number, step, id, (start, end))


def _of_step(trial: MultiStepTrial, attempt: int, step: StepStatus, parent: str, within: tuple[float, float]) -> Iterator[Span]:
    start = min(_seconds(step.start_time) or within[0], _LATEST)
    phases = step.phase_seconds.model_dump(exclude_none=True) if step.phase_seconds else {}
    end = min(max(start, _seconds(step.completion_time) or within[1], start + sum(phases.values())), _LATEST)
    id, error = _id(trial, attempt, step.name), step.exception.type if step.exception else ""
    yield Span(id, parent, f"step {step.name}", start, end, {"multistep.step": step.name, **_rewards(step.rewards)}, error)
    for phase, seconds in phases.items():
        failed = step.exception is not None and step.exception.phase == phase
        ended = min(max(start, start + seconds), _LATEST)
        yield Span(_id(trial, attempt, step.name, phase), id, phase, start, ended, error=error if failed else "")
        start = ended


def _of_request(trial: MultiStepTrial, request: ModelRequest, known: Collection[str]) -> Span:
    """Return the span of a model request below that of its step, else of its attempt, else of the trial. Its attributes have the
    names of OpenTelemetry's semantic conventions for generative AI."""
    parents = (_id(trial, request.attempt, request.access), _id(trial, request.attempt), _id(trial))
    operation, model = "generate_content" if request.provider == "gemini" else "chat", request.model[:_MAX_MODEL_CHARACTERS]
    named: dict[str, Value | None] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": _PROVIDERS.get(request.provider, request.provider),
        "gen_ai.request.model": model,
        "gen_ai.usage.input_tokens": request.input_tokens,
        "gen_ai.usage.cache_read.input_tokens": request.cached_tokens,
        "gen_ai.usage.output_tokens": request.output_tokens,
        "error.type": request.error or None,
        "multistep.role": request.role,
        "multistep.held_seconds": request.held_seconds,
    }
    attributes = {name: value for name, value in named.items() if value is not None}
    start = min(request.start, _LATEST)
    end = min(max(start, request.end), _LATEST)
    parent = next(id for id in parents if id in known)
    return Span(
        _id(trial, "request", request.id), parent, f"{operation} {model}", start, end, attributes, request.error, client=True
    )


def _of_trial(trial: MultiStepTrial) -> dict[str, Value]:
    return {
        "k8s.namespace.name": trial.metadata.namespace,
        "multistep.trial": trial.metadata.name,
        "multistep.task": trial.status.task or "",
        "multistep.agent": trial.spec.agent.label,
        "multistep.phase": trial.status.phase or "",
        **_rewards(trial.status.rewards),
    }


def _rewards(rewards: Mapping[str, int | float] | None) -> dict[str, Value]:
    """Return the rewards as span attributes. All are floats, because an attribute must have the same type in all spans."""
    return {f"multistep.reward.{key}": float(value) for key, value in (rewards or {}).items()}


def _id(trial: MultiStepTrial, *path: object) -> str:
    named = "/".join([trial.metadata.uid, *map(str, path)])
    return hashlib.sha256(named.encode()).hexdigest()[:16]


def _seconds(time: datetime | None) -> float | None:
    return time.timestamp() if time else None
