"""Redacts secret values from a trial's status, and so from its Events and the operator's log."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from multistep.api.trial.status import TrialStatus

MARK = "[REDACTED]"
_TEXTS = ("message", "missing", "detail")  # fields whose texts may come from the environment


def redacted(status: TrialStatus, secrets: Collection[str]) -> TrialStatus:
    """Return the status with all secrets in its messages and details replaced by MARK. A message may contain a verifier's output,
    and verifiers may print the agent's files; a detail has names that the agent chose."""
    values = sorted((each for each in secrets if each and each not in MARK), key=len, reverse=True)
    if not values:
        return status
    content = status.model_dump()
    return TrialStatus.model_validate(content) if _redact(content, values) else status


def _redact(value: Any, secrets: Collection[str]) -> bool:
    """Redact all messages and details in a nested value of lists and dicts, in place. Return whether any changed."""
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
