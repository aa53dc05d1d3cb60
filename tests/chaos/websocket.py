"""Read websocket frames (RFC 6455): their raw bytes to forward, and their payload."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

_SHORT, _LONG = 126, 127  # length values that announce an extended length of 2 or 8 bytes


@dataclass(frozen=True)
class Passing:
    """A frame to forward. raw: its bytes as received; payload: its payload, unmasked."""

    raw: bytes
    payload: bytes


async def next_frame(reader: asyncio.StreamReader) -> Passing:
    """Read and return the next whole frame. Raise IncompleteReadError at the end of the stream."""
    head = await reader.readexactly(2)
    length = head[1] & 0x7F
    if length in (_SHORT, _LONG):
        extended = await reader.readexactly(2 if length == _SHORT else 8)
        head, length = head + extended, int.from_bytes(extended)
    mask = await reader.readexactly(4) if head[1] & 0x80 else b""
    body = await reader.readexactly(length)
    return Passing(head + mask + body, _unmasked(body, mask) if mask else body)


def _unmasked(body: bytes, mask: bytes) -> bytes:
    key = (mask * (len(body) // 4 + 1))[: len(body)]
    return (int.from_bytes(body) ^ int.from_bytes(key)).to_bytes(len(body))
