"""Parses the tar stream (PAX) that a runner sent, in bounded memory.

The stream comes from an untrusted container. The standard library's parser reads extended headers of any size into memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from multistep.errors import StoreError

BLOCK = 512
MAX_MEMBERS = 200_000  # maximum number of artifacts in a download, whose names are all in memory at once
MAX_EXTENDED_BYTES = 64 * 1024  # maximum size of an extended header, which has at most two paths and some numbers
_SIZE_LIMIT = 2**62

Kind = Literal["file", "directory", "link", "other"]
_KINDS: Mapping[bytes, Kind] = {b"0": "file", b"\0": "file", b"7": "file", b"5": "directory", b"2": "link"}
_HEADER_ONLY = frozenset(b"123456")  # types of members without contents, whose size field is ignored
_EXTENDED = {b"x": "", b"L": "path", b"K": "linkpath"}


@dataclass(frozen=True)
class TarMember:
    """A tar member."""

    name: str
    kind: Kind
    mode: int
    """Permission bits."""
    mtime: float
    """Seconds since the epoch."""
    target: str
    """Target of a link."""
    offset: int
    """Position of the contents in the tar, in bytes."""
    size: int
    """Size of the contents, in bytes."""


class InvalidTar(StoreError):
    """A tar file is invalid."""


def tar_members(fd: int, *, cut: bool = False) -> Iterator[TarMember]:
    """Yield the members of a tar file in order. Raises InvalidTar.

    If the file is known to end early (``cut``), an incomplete last member is left out. Otherwise it is an error.
    """
    length, position = os.fstat(fd).st_size, 0
    extended: dict[str, bytes] = {}
    while block := _header(fd, position, length // BLOCK * BLOCK if cut else length):
        kind, size = block[156:157], _content_size(block, extended)
        position += BLOCK
        if position + size > length:
            if cut:
                return
            raise _broken("it is cut short")
        if kind in _EXTENDED:
            extended |= _extended(kind, _contents(fd, position, size))
        elif kind != b"g":
            yield _member(block, extended, position, size)
            extended = {}
        position += -(-size // BLOCK) * BLOCK


def _header(fd: int, position: int, length: int) -> bytes:
    """Return the header block at a position, or b"" at the end of the archive."""
    block = os.pread(fd, BLOCK, position)
    if position >= length or not block.strip(b"\0"):
        return b""
    if len(block) < BLOCK:
        raise _broken("it is cut short")
    if _number(block[148:156]) != sum(block) - sum(block[148:156]) + 8 * ord(" "):
        raise _broken("a header's checksum is wrong")
    return block


def _content_size(block: bytes, extended: Mapping[str, bytes]) -> int:
    kind = block[156:157]
    if kind in _EXTENDED:
        return _number(block[124:136])
    size = _decimal(extended["size"]) if "size" in extended else _number(block[124:136])
    return 0 if kind[0] in _HEADER_ONLY else size


def _contents(fd: int, position: int, size: int) -> bytes:
    if size > MAX_EXTENDED_BYTES:
        raise _broken(f"an extended header has {size} bytes; at most {MAX_EXTENDED_BYTES} are read")
    return os.pread(fd, size, position)


def _extended(kind: bytes, data: bytes) -> dict[str, bytes]:
    name = _EXTENDED[kind]
    return {name: data.rstrip(b"\0")} if name else dict(_pax_records(data))


def _pax_records(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the key and the value of each record ``LENGTH KEY=VALUE``, which ends with a newline. A value may contain any bytes."""
    while data:
        digits, space, _ = data[:20].partition(b" ")
        size = _decimal(digits) if space else 0
        key, equals, value = data[len(digits) + 1 : size].partition(b"=")
        if not equals or not value.endswith(b"\n") or size > len(data):
            raise _broken("an extended header is malformed")
        yield key.decode(errors="replace"), value[:-1]
        data = data[size:]


def _member(block: bytes, extended: Mapping[str, bytes], offset: int, size: int) -> TarMember:
    name = extended.get("path") or _ustar_name(block)
    kind = _KINDS.get(block[156:157], "other")
    return TarMember(
        name=os.fsdecode(name),
        kind="directory" if kind == "file" and name.endswith(b"/") else kind,
        mode=_number(block[100:108]) & 0o777,  # without setuid, setgid and sticky bit
        mtime=_time(float, extended["mtime"]) if "mtime" in extended else _time(_number, block[136:148]),
        target=os.fsdecode(extended.get("linkpath") or _text(block[157:257])),
        offset=offset,
        size=size,
    )


def _ustar_name(block: bytes) -> bytes:
    name, prefix = _text(block[:100]), _text(block[345:500])
    return prefix + b"/" + name if prefix and block[257:263] == b"ustar\0" else name


def _text(field: bytes) -> bytes:
    return field.partition(b"\0")[0]


def _number(field: bytes) -> int:
    """Return the number in a field. It is binary if the first bit is set, and octal digits otherwise."""
    if field[0] & 0x80:
        value = int.from_bytes(bytes([field[0] & 0x7F]) + field[1:], "big")
        return value if value < _SIZE_LIMIT else _invalid_number(field)
    digits = _text(field).strip()
    try:
        value = int(digits or b"0", 8)
    except ValueError:
        return _invalid_number(field)
    return value if value >= 0 else _invalid_number(field)


def _decimal(text: bytes) -> int:
    if not text.isdigit() or len(text) > 18:
        return _invalid_number(text)
    return int(text)


def _time(read: Callable[[bytes], float], text: bytes) -> float:
    """Return a time in seconds since the epoch. Return 0 for an invalid time, because the file is still useful."""
    try:
        value = read(text)
    except (ValueError, InvalidTar):
        return 0.0
    return value if abs(value) < 2**33 else 0.0


def _invalid_number(field: bytes) -> int:
    raise _broken(f"{field[:40]!r} is not a number")


def _broken(why: str) -> InvalidTar:
    return InvalidTar(f"the tar stream of collected files is invalid: {why}")
