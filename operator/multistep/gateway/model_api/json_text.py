"""Positions in JSON text, for functions that change a part of it and keep the rest as it was written."""

from __future__ import annotations

import re
from typing import Final

_SPACES: Final = " \t\n\r"
_SPACE: Final = re.compile(r"[ \t\n\r]*")


def space(text: str, at: int) -> int:
    """Return the position after the white space that starts at ``at``."""
    if text[at : at + 1] not in _SPACES:  # mostly there is none, and the regular expression takes longer
        return at
    match = _SPACE.match(text, at)
    return match.end() if match else at


def past(text: str, at: int, wanted: str) -> int:
    """Return the position after the character ``wanted`` and, unless it is a quote, after the white space that follows. Raises
    ValueError for another character, IndexError at the end of the text."""
    if text[at] != wanted:
        raise ValueError(f"expected {wanted!r} at character {at}")
    return at + 1 if wanted == '"' else space(text, at + 1)
