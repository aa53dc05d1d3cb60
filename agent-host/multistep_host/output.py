"""Keeps a command's output in bounded memory. Of a long output, only the start and the end are kept."""

from __future__ import annotations

HEAD_BYTES = 2 << 20
TAIL_BYTES = 2 << 20


class BoundedOutput:
    """Collects one of a command's output streams. Its memory is bounded, because a hostile agent may print without end.

    The end is kept because Harbor classifies errors by the last output of a program.
    """

    def __init__(self, head_bytes: int = HEAD_BYTES, tail_bytes: int = TAIL_BYTES) -> None:
        self._head_bytes, self._tail_bytes = head_bytes, tail_bytes
        self._head, self._tail = bytearray(), bytearray()
        self._size = 0

    def write(self, block: bytes) -> None:
        """Append a block of output."""
        self._size += len(block)
        room = self._head_bytes - len(self._head)
        self._head += block[:room]
        self._tail += block[room:]
        if len(self._tail) > 2 * self._tail_bytes:  # truncate only at twice the limit, so that appending stays cheap
            del self._tail[: -self._tail_bytes]

    def text(self) -> str:
        """Return the output. If bytes are left out, a line in the middle states how many. Invalid UTF-8 is replaced."""
        tail = bytes(self._tail[-self._tail_bytes :])
        omitted = self._size - len(self._head) - len(tail)
        gap = f"\n[... {omitted} bytes left out ...]\n".encode() if omitted else b""
        return (bytes(self._head) + gap + tail).decode(errors="replace")
