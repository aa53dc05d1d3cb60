"""The framing of a session with the runner (docs/internals/runner-protocol.md, Frames): pure, no IO.

A frame is its type (1 byte), the length of its payload (4 bytes, big endian), and the payload.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from multistep.errors import RunnerError

MAX_PAYLOAD_BYTES: Final = 1024 * 1024  # maximum payload of a D frame
MAX_JSON_BYTES: Final = 8 * 1024 * 1024  # maximum payload of a J or E frame: the answer to hello has all records of a trial
MAX_JSON_VALUES: Final = 250_000  # per frame; limits memory: an empty list takes 2 bytes in a frame, but 60 in memory
HEADER = struct.Struct(">cI")

Kind = Literal[b"J", b"D", b"E"]
MESSAGE: Final = b"J"  # one JSON object: a request or an answer
DATA: Final = b"D"  # a chunk of a body: a tar stream, or the files or manifest of a checkpoint
END: Final = b"E"  # follows the last chunk of a body, with the body's size and digest
_KINDS: Final = frozenset({MESSAGE, DATA, END})


@dataclass(frozen=True)
class Frame:
    kind: bytes
    payload: bytes

    def json(self) -> dict[str, Any]:
        """Return the payload of a J or E frame. Raises RunnerError (code Protocol) if it is not one JSON object."""
        try:
            value = _DECODER.decode(self.payload.decode(errors="surrogatepass"))
        except (ValueError, RecursionError) as error:  # RecursionError: a hostile runner may nest JSON too deeply
            raise RunnerError(f"the runner sent invalid JSON: {error}"[:300], code="Protocol") from None
        if not isinstance(value, dict):
            raise RunnerError("the runner sent JSON that is not an object", code="Protocol")
        if len(self.payload) > MAX_JSON_VALUES:  # a value takes at least one byte
            _require_few_values(value)
        return value


def encode(kind: bytes, payload: bytes) -> bytes:
    """Return one encoded frame. Raises ValueError if the payload is larger than this kind of frame may be."""
    if len(payload) > _limit(kind):
        raise ValueError(f"a frame of {len(payload)} bytes exceeds the limit of {_limit(kind)}")
    return HEADER.pack(kind, len(payload)) + payload


def encode_json(kind: bytes, value: Mapping[str, Any]) -> bytes:
    """Return one encoded J or E frame. Raises ValueError if it is too large or contains NaN or infinity."""
    return encode(kind, json.dumps(value, separators=(",", ":"), allow_nan=False).encode())


class FrameReader:
    """Splits a byte stream, fed in chunks of any size, into frames. Buffers at most one frame and the last chunk."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def next(self) -> Frame | None:
        """Return the next whole frame, or None if it is incomplete. Raises RunnerError (code Protocol) for an invalid frame."""
        if len(self._buffer) < HEADER.size:
            return None
        kind, length = HEADER.unpack_from(self._buffer)
        if kind not in _KINDS:
            raise RunnerError(f"the runner sent a frame of unknown type {kind!r}", code="Protocol")
        if length > _limit(kind):
            raise RunnerError(f"the runner sent a frame of {length} bytes (limit {_limit(kind)})", code="Protocol")
        end = HEADER.size + length
        if len(self._buffer) < end:
            return None
        with memoryview(self._buffer) as view:
            payload = bytes(view[HEADER.size : end])
        del self._buffer[:end]  # cheap: a bytearray moves its start, not its content
        return Frame(kind, payload)

    def __iter__(self) -> Iterator[Frame]:
        """Iterate over all whole frames in the buffer."""
        while (frame := self.next()) is not None:
            yield frame


def _limit(kind: bytes) -> int:
    return MAX_PAYLOAD_BYTES if kind == DATA else MAX_JSON_BYTES


def _require_few_values(value: object) -> None:
    count, level = 0, [value]
    while level:
        count += len(level)
        if count > MAX_JSON_VALUES:
            raise RunnerError(f"the runner sent JSON of more than {MAX_JSON_VALUES} values", code="Protocol")
        level = [below for each in level for below in _below(each)]


def _below(value: object) -> Iterable[object]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


_DECODER: Final = json.JSONDecoder(parse_constant=_refuse_constant)
