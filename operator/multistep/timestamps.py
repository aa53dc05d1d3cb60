"""Times as text."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal


def rfc3339(seconds: float, fraction: Literal["milliseconds", "microseconds"]) -> str:
    """Return a time in UTC as Kubernetes writes it. seconds: since the epoch."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec=fraction).replace("+00:00", "Z")


def seconds_of(timestamp: str | None) -> float | None:
    """Return a time of an object in seconds since the epoch; None without a time that exists, as anyone may have written it."""
    try:
        return datetime.fromisoformat(timestamp).timestamp() if timestamp else None
    except (ValueError, OverflowError):
        return None
