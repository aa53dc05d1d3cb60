"""Limits the size of a status, which verifiers and agents could inflate, and redacts secrets. result.json has the complete
values."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from typing import Any

from multistep.api.trial.status import AttemptStatus, StepStatus, TrialStatus, total
from multistep.api.trial.status_journal import may_be_stored, stored
from multistep.engine.lifecycle.stop_and_suspend import SWEEP_BUDGET_SPENT
from multistep.engine.score import rewards
from multistep.engine.score.trial_score import is_too_large

MAX_MESSAGE_BYTES = 1024
MAX_REWARD_KEYS = 64
MAX_KEY_BYTES = 128
MAX_STATUS_BYTES = 56 * 1024  # the object of a trial of 100 steps then has at most 64 KiB, unless its task is inline
MAX_SHORT_BYTES = 128  # maximum size of a message in a status that exceeds MAX_STATUS_BYTES


def to_json(status: TrialStatus) -> dict[str, Any]:
    """Return the status as the API server stores it. If the status is too large, leave out details, the least important ones first.

    result.json has all details. Score, failure class, outcome, usage and use of the deadline can still be computed from the
    remaining status.
    """
    whole, content = _dumped(status)
    for shorten in _SHORTENERS:
        if status_bytes(content) <= MAX_STATUS_BYTES and may_be_stored(whole):
            return content
        status = shorten(status)
        whole, content = _dumped(status)
    # The status is still too large if earlier attempts have thousands of steps. Leave out these steps, with their usage.
    return content if may_be_stored(whole) else _dumped(_with_attempts(status, lambda _: {"steps": []}))[1]


def status_bytes(content: Mapping[str, Any]) -> int:
    """Return the size in bytes of a status or a whole object, as the API server stores it."""
    return len(json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode(errors="replace"))


def _dumped(status: TrialStatus) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return all fields of the status, and the status as the API server stores it."""
    dumped = status.model_dump(mode="json", by_alias=True, exclude_none=True)
    whole = {name: value for name, value in dumped.items() if value != []}
    return whole, stored(TrialStatus, whole)


def _without_lists(status: TrialStatus) -> TrialStatus:
    """Remove the steps' lists of incomplete sources and of refused targets."""
    return _with_steps(status, _without_step_lists)


def _without_step_lists(step: StepStatus) -> dict[str, Any]:
    artifacts = step.artifacts
    if artifacts is not None and artifacts.incomplete:
        artifacts = artifacts.model_copy(update={"incomplete": ["see manifest.json"]})
    return {"artifacts": artifacts, "egress": step.egress and total([step.egress], most=0)}


def _without_messages(status: TrialStatus) -> TrialStatus:
    """Shorten the messages of attempts, and remove the messages of steps' exceptions.

    The message of an attempt that a sweep's budget stopped is kept, because the operator reads from it what the request could have
    cost.
    """
    shorter = _with_attempts(
        status, lambda each: {"message": each.message if each.reason == SWEEP_BUDGET_SPENT else shortened(each.message or "")}
    )
    return _with_steps(shorter, lambda step: {"exception": step.exception and step.exception.model_copy(update={"message": ""})})


def _with_short_attempts(status: TrialStatus) -> TrialStatus:
    """Keep only some fields of the steps of earlier attempts, for sums of usage and time and for the choice of a checkpoint."""
    return _with_attempts(status, lambda attempt: {"steps": [_short_step(each) for each in attempt.steps]})


def _short_step(step: StepStatus) -> StepStatus:
    return StepStatus(
        name=step.name,
        start_time=step.start_time,
        completion_time=step.completion_time,
        usage=step.usage,
        judge_usage=step.judge_usage,
        user_usage=step.user_usage,
        checkpoint=step.checkpoint,
        trial=step.trial,
    )


def _with_hidden_seconds(status: TrialStatus) -> TrialStatus:
    """Move the seconds of phases into the status journal. They are still needed to decide who is to blame for a missed deadline."""
    return _with_steps(status, lambda step: {"seconds": None, "hidden_seconds": step.phase_seconds})


def _without_source_tests(status: TrialStatus) -> TrialStatus:
    source = status.regraded
    if source is None:
        return status
    steps = [each.model_copy(update={"tests": "omitted"}) if each.tests else each for each in source.steps]
    return status.model_copy(update={"regraded": source.model_copy(update={"steps": steps})})


def _without_task_steps(status: TrialStatus) -> TrialStatus:
    return status.model_copy(update={"task_steps": []})


def _fewer_rewards(status: TrialStatus) -> TrialStatus:
    """Keep one reward per step. This shortener is the last one, because rewards matter most."""
    return _with_steps(status, _with_one_reward)


def _with_one_reward(step: StepStatus) -> dict[str, Any]:
    kept = bounded_rewards(step.rewards, most=1)
    omitted = (step.omitted_rewards or 0) + len(step.rewards or {}) - len(kept or {})
    return {"rewards": kept, "omitted_rewards": omitted or None}


def _with_steps(status: TrialStatus, changes: Callable[[StepStatus], dict[str, Any]]) -> TrialStatus:
    return status.model_copy(update={"steps": [each.model_copy(update=changes(each)) for each in status.steps]})


def _with_attempts(status: TrialStatus, changes: Callable[[AttemptStatus], dict[str, Any]]) -> TrialStatus:
    return status.model_copy(update={"attempts": [each.model_copy(update=changes(each)) for each in status.attempts]})


_SHORTENERS = (
    _without_lists,
    _without_messages,
    _with_short_attempts,
    _with_hidden_seconds,
    _without_task_steps,
    _without_source_tests,
    _fewer_rewards,
)


def shortened(message: str) -> str:
    """Return the first 128 bytes of a message."""
    data = message.encode(errors="replace")
    return message if len(data) <= MAX_SHORT_BYTES else f"{data[: MAX_SHORT_BYTES - 3].decode(errors='ignore')}..."


def bounded(message: str) -> str:
    """Return the start and end of a message, at most 1,024 bytes, without control characters."""
    data = message.encode(errors="replace")
    if len(data) > MAX_MESSAGE_BYTES:
        half = MAX_MESSAGE_BYTES // 2 - 3
        message = f"{data[:half].decode(errors='ignore')} ... {data[-half:].decode(errors='ignore')}"
    return "".join(each if each.isprintable() or each in "\n\t" else "?" for each in message)


def bounded_rewards(values: rewards.Rewards | None, most: int = MAX_REWARD_KEYS) -> dict[str, int | float] | None:
    """Return at most ``most`` rewards. "reward" comes first if it exists, and then rewards that are too large to count.

    Integers of 2**53 or more become floats. Rewards whose key is too long or not printable are left out, and so are integers that
    are too large for a float.
    """
    if values is None:
        return None
    named = {key: _number(value) for key, value in values.items() if key.isprintable() and len(key.encode()) <= MAX_KEY_BYTES}
    kept = {key: value for key, value in named.items() if value is not None}
    first = sorted(kept, key=lambda key: (key != "reward", not is_too_large(kept[key])))[:most]
    return {key: value for key, value in kept.items() if key in first}


def reward_text(values: Mapping[str, int | float] | None) -> str | None:
    """Return the rewards as a short text, which is the value of "reward" alone, or all values with their keys."""
    if not values:
        return None
    if "reward" in values:
        return f"{values['reward']:.4g}"
    return ", ".join(f"{key}={value:.4g}" for key, value in sorted(values.items()))[:60]


def _number(value: float | int) -> int | float | None:
    if isinstance(value, float) or abs(value) < 2**53:
        return value
    try:
        return float(value)
    except OverflowError:
        return None


MARK = "[REDACTED]"
_TEXTS = ("message", "missing", "detail")  # fields whose texts may come from the environment


def redacted(status: TrialStatus, secrets: Collection[str]) -> TrialStatus:
    """Return the status with all secrets in its messages and details replaced by MARK.

    A message may contain a verifier's output, and a verifier may print the agent's files. A detail contains names that the agent
    chose.
    """
    values = sorted((each for each in secrets if each and each not in MARK), key=len, reverse=True)
    if not values:
        return status
    content = status.model_dump()
    return TrialStatus.model_validate(content) if _redact(content, values) else status


def _redact(value: Any, secrets: Collection[str]) -> bool:
    """Redact, in place, all messages and details in nested lists and dicts. Return whether any text changed."""
    inner = value if isinstance(value, list) else list(value.values()) if isinstance(value, dict) else []
    changed = sum(_redact(each, secrets) for each in inner) > 0
    for name in _TEXTS if isinstance(value, dict) else ():
        text = value.get(name)
        if isinstance(text, str) and (clean := _replaced(text, secrets)) != text:
            value[name], changed = clean, True
    return changed


def _replaced(text: str, secrets: Collection[str]) -> str:
    for each in secrets:
        text = text.replace(each, MARK)
    return text
