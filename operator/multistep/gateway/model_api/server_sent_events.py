"""Reads server-sent events: regroups the pieces of a stream into whole events, without changing a byte."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_BLANK_LINE: Final = re.compile(rb"(?:\r\n|\n|\r(?!\n)){2}")
_LINE_END: Final = re.compile(rb"\r\n|\n|\r")
_LONGEST_BLANK_LINE: Final = 4


@dataclass(frozen=True, slots=True)
class Event:
    """One event. raw: its bytes, with the blank line that ends it; data: the text of its ``data:`` lines; name: its name, b""
    without one."""

    raw: bytes
    data: bytes
    name: bytes = b""


class EventReader:
    """Regroups the pieces of a stream into events. The ``raw`` bytes of all events and of ``rest`` together are the stream."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, piece: bytes) -> list[Event]:
        """Return the events that this piece completes."""
        start = max(0, len(self._pending) - _LONGEST_BLANK_LINE)
        self._pending += piece
        found, taken = [], 0
        for blank in _BLANK_LINE.finditer(self._pending, start):
            found.append(_event(bytes(self._pending[taken : blank.end()])))
            taken = blank.end()
        del self._pending[:taken]
        return found

    @property
    def pending(self) -> int:
        """Return the number of bytes of the incomplete event."""
        return len(self._pending)

    def rest(self) -> Event | None:
        """Return the incomplete event at the end of the stream; None if the last event is complete."""
        left, self._pending = bytes(self._pending), bytearray()
        return _event(left) if left else None


def _event(raw: bytes) -> Event:
    lines = _LINE_END.split(raw)
    names = [line[6:].strip() for line in lines if line.startswith(b"event:")]
    data = b"\n".join(line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:"))
    return Event(raw, data, names[-1] if names else b"")
