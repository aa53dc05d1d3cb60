"""Splits the stream of an answer into its server-sent events."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Final

_BLANK_LINE: Final = re.compile(rb"(?:\r\n|\n|\r(?!\n)){2}")
_LINE_END: Final = re.compile(rb"\r\n|\n|\r")
_LONGEST_BLANK_LINE: Final = 4


@dataclass(frozen=True, slots=True)
class AnswerEvent:
    """One event of a stream."""

    raw: bytes
    """The event's bytes, with the blank line that ends it."""
    data: bytes
    """The text of the event's ``data:`` lines."""
    name: bytes = b""


class EventReader:
    """Splits a stream, which arrives in pieces of any size, into events. The ``raw`` bytes of all events and ``rest`` make up the
    stream."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, piece: bytes) -> list[AnswerEvent]:
        """Return the events that this piece completes."""
        start = max(0, len(self._pending) - _LONGEST_BLANK_LINE)
        self._pending += piece
        events = []
        taken = 0
        for blank in _BLANK_LINE.finditer(self._pending, start):
            events.append(_event(bytes(self._pending[taken : blank.end()])))
            taken = blank.end()
        del self._pending[:taken]
        return events

    @property
    def pending(self) -> int:
        """The number of bytes of the incomplete event."""
        return len(self._pending)

    def rest(self) -> AnswerEvent | None:
        """Return the incomplete event at the end of the stream, or None if the last event is complete."""
        left = bytes(self._pending)
        self._pending.clear()
        return _event(left) if left else None


def _event(raw: bytes) -> AnswerEvent:
    lines = _LINE_END.split(raw)
    names = [line[6:].strip() for line in lines if line.startswith(b"event:")]
    data = b"\n".join(line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:"))
    return AnswerEvent(raw, data, names[-1] if names else b"")


def is_usage_only(data: bytes) -> bool:
    """Return whether this is the last chunk of a chat stream, which has usage and no choices."""
    if b'"usage"' not in data:
        return False
    try:
        chunk = json.loads(data)
    except ValueError:
        return False
    return isinstance(chunk, dict) and chunk.get("choices") == [] and bool(chunk.get("usage"))
