"""A pack of the history: gzip of lines of JSON. Whoever may write to the object store may have written it."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterable, Iterator
from typing import Final

from multistep.errors import StoreError

MAX_BYTES: Final = 128 << 20
"""Maximum bytes of a pack and of its lines. 5,000 trials of a sweep have at most 80 MiB of lines."""
DAMAGED: Final = "a pack of the history is damaged; delete it, and its trials leave the history"
_PIECE_BYTES: Final = 1 << 20
_TOO_LARGE: Final = f"a pack of the history has more than {MAX_BYTES} bytes of lines"


def packed(lines: Iterable[bytes]) -> bytes:
    """Return a pack with these lines; the same lines make the same bytes. Raises StoreError for more than MAX_BYTES."""
    joined = b"".join(lines)
    if len(joined) > MAX_BYTES:
        raise StoreError(_TOO_LARGE)
    return gzip.compress(joined, mtime=0)


def unpacked(pack: bytes) -> Iterator[bytes]:
    """Yield the lines of a pack in pieces of at most 1 MiB. Raises StoreError if it is damaged, or has more than MAX_BYTES."""
    size = 0
    with gzip.GzipFile(fileobj=io.BytesIO(pack)) as stream:
        while True:
            try:
                piece = stream.read(_PIECE_BYTES)
            except (OSError, EOFError, zlib.error) as error:
                raise StoreError(f"{DAMAGED}: {error}") from None
            if not piece:
                return
            size += len(piece)
            if size > MAX_BYTES:
                raise StoreError(_TOO_LARGE)
            yield piece
