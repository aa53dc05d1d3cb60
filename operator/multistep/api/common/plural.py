"""Formats a count with its noun for messages, e.g. "1 step" or "2 steps"."""

from __future__ import annotations


def plural(count: int, one: str, many: str = "") -> str:
    """Return the count followed by ``one`` if the count is 1, else by ``many``, which defaults to ``one`` with an "s"."""
    return f"{count} {one if count == 1 else many or f'{one}s'}"
