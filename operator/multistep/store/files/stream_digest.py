"""Size and digest of a stream."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, AsyncIterator


class StreamDigest:
    """Size and SHA-256 of the chunks that passed through ``of``."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self.size = 0

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()

    async def of(self, chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        """Yield the chunks unchanged while counting and hashing them."""
        async for chunk in chunks:
            self._hash.update(chunk)
            self.size += len(chunk)
            yield chunk
