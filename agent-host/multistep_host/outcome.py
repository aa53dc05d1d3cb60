"""The outcome of a request, as the operator reads it from a file of at most 48 KiB."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MAX_BYTES = 48 << 10
_MESSAGE_CHARACTERS = 2000  # these take at most 24 kB, because a character takes up to 12 bytes in JSON
_METADATA_BYTES = 16 << 10
_NAME_CHARACTERS = 100
# The type of the agent host's own errors. Other types are exception classes of Harbor and agents.
HOST_ERROR = "AgentHostError"

Outcome = dict[str, Any]


def outcome(
    *,
    error: Mapping[str, Any] | None = None,
    agent: Mapping[str, Any] | None = None,
    usage: Mapping[str, Any] | None = None,
    metadata: Mapping[str, Any] | None = None,
    rollout_details: bool = False,
) -> Outcome:
    """Return an outcome, whose `ok` is true if there is no error."""
    return {
        "ok": error is None,
        "error": dict(error) if error else None,
        "agent": _with_short_names(agent) if agent else None,
        "usage": dict(usage) if usage else {"inputTokens": None, "cachedTokens": None, "outputTokens": None, "costUSD": None},
        "metadata": _within(metadata),
        "rolloutDetails": rollout_details,
    }


def error_of(exception: BaseException) -> dict[str, str]:
    """Return an exception's class name, which Harbor 0.26's ExceptionInfo also uses as type, and its message."""
    return {"type": type(exception).__name__, "message": _cut(str(exception))}


def host_error(message: str) -> dict[str, str]:
    """Return an error of the agent host itself, not of the agent."""
    return {"type": HOST_ERROR, "message": _cut(message)}


def write(path: Path, value: Outcome) -> None:
    """Write the outcome atomically, so that a reader never sees a partial file."""
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    unfinished.write_text(json.dumps(value))
    unfinished.rename(path)


def _cut(message: str) -> str:
    """Return the message, of which only the start and the end are kept if it is long. Programs usually report a failure at the
    end."""
    if len(message) <= _MESSAGE_CHARACTERS:
        return message
    half = _MESSAGE_CHARACTERS // 2
    return f"{message[:half]} [...] {message[-half:]}"


def _with_short_names(agent: Mapping[str, Any]) -> dict[str, Any]:
    """Return the agent's fields with truncated values. The version is output of a program in the environment, which may be
    hostile."""
    return {
        key: _with_short_names(value) if isinstance(value, Mapping) else value and str(value)[:_NAME_CHARACTERS]
        for key, value in agent.items()
    }


def _within(metadata: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the metadata, or None if it is not JSON or too large."""
    try:
        text = json.dumps(metadata)
    except (TypeError, ValueError):
        return None
    return dict(metadata) if metadata is not None and len(text) <= _METADATA_BYTES else None
