"""Bounds the memory for parsed JSON: values need up to 30 times the memory of their text."""

from __future__ import annotations

from typing import Final

MAX_PARTS: Final = 1_000_000
"""Maximum number of brackets and commas in a document that the gateway parses."""


def has_too_many_parts(text: bytes) -> bool:
    """Return whether a JSON document may have too many values to be parsed."""
    return sum(map(text.count, (b"[", b"{", b","))) > MAX_PARTS
