"""Converts times to text and back."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal


def rfc3339(seconds: float, fraction: Literal["milliseconds", "microseconds"]) -> str:
    """Return a time, given in seconds since the epoch, as text in UTC, as Kubernetes writes it."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec=fraction).replace("+00:00", "Z")


def seconds_of(timestamp: str | None) -> float | None:
    """Return a time in an object as seconds since the epoch, None if it is missing or invalid, because any user may have written
    it."""
    try:
        return datetime.fromisoformat(timestamp).timestamp() if timestamp else None
    except (ValueError, OverflowError):
        return None
