"""Frames of a file: each is complete by itself, and has a checksum and one or more msgpack objects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from threading import Lock
from typing import Any, BinaryIO, Final

import msgpack
import zstandard

MAX_FRAME_BYTES: Final = 64 << 20
"""Maximum bytes of a frame's objects."""
_PIECE_BYTES: Final = 1 << 10  # a piece decompresses to at most 32 MiB: 4 bytes can stand for a block of 128 KiB
_MAX_ITEMS: Final = 4096  # of an object and all lists and maps in it: an item of one byte needs up to 100 bytes of memory
_COMPRESSING: Final = Lock()  # a compressor that two threads use at once hangs or crashes
_COMPRESSOR: Final = zstandard.ZstdCompressor(level=3, write_checksum=True)  # one for all files: its buffers are about 1 MiB


class Damaged(Exception):
    """The rest of the file cannot be read; the message says why."""


def frame_of(objects: Sequence[Mapping[str, Any]]) -> bytes:
    """Return a frame with objects."""
    content = b"".join(map(msgpack.packb, objects))
    with _COMPRESSING:
        return _COMPRESSOR.compress(content)


def frames(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield the content of each whole frame, with the offset of the frame's end. Stop before a frame that is cut off.

    Raises Damaged if a frame is invalid or too large. Memory: at most about 160 MiB.
    """
    decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_FRAME_BYTES)
    start, rest = 0, b""
    while True:
        frame, content, size, length = decompressor.decompressobj(), list[bytes](), 0, 0
        while not frame.eof:
            piece = rest or file.read(_PIECE_BYTES)
            if not piece:
                return
            try:
                content.append(frame.decompress(piece))
            except zstandard.ZstdError as error:
                raise Damaged(f"the frame at byte {start} is damaged: {error}") from error
            size, rest = size + len(piece), frame.unused_data
            length += len(content[-1])
            if length > MAX_FRAME_BYTES:
                raise Damaged(f"the frame at byte {start} has more than {MAX_FRAME_BYTES} bytes")
        start += size - len(rest)
        yield start, b"".join(content)


def objects_of(content: bytes) -> Iterator[dict[str, Any]]:
    """Yield the objects of a frame. Raises Damaged if one is invalid or too large."""
    items = 0

    def count(value: Any) -> Any:
        nonlocal items
        items += 1 + len(value)
        if items > _MAX_ITEMS:
            raise ValueError(f"it has more than {_MAX_ITEMS} items")
        return value

    unpacker = msgpack.Unpacker(
        max_buffer_size=MAX_FRAME_BYTES,
        max_array_len=_MAX_ITEMS,
        max_map_len=_MAX_ITEMS,
        max_ext_len=0,
        list_hook=count,
        object_hook=count,
    )
    unpacker.feed(content)
    try:
        for each in unpacker:
            if not isinstance(each, dict):
                raise ValueError("it is not a map")
            yield each
            items = 0
        if unpacker.tell() != len(content):
            raise ValueError("it is cut off")
    except (ValueError, msgpack.UnpackException) as error:
        raise Damaged(f"an object is invalid: {error}") from error
