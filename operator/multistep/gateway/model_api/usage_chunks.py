"""Removes the chunk with the usage from a chat stream, if only the gateway asked for it.

A server that is asked for the usage may move system_fingerprint from the chunk with the finish reason to that chunk (vLLM does). So
the chunk with the finish reason waits for the next one, and gets the field back.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from multistep.gateway.model_api.answer_parsers import AnswerEvent

_FINISH: Final = re.compile(rb'"finish_reason"\s*:\s*"')  # in a JSON string, its quotes would be escaped
_FINGERPRINT: Final = b'"system_fingerprint"'


class UsageChunks:
    """Removes the usage from one stream."""

    def __init__(self) -> None:
        self._waiting = b""  # the bytes of a chunk with the finish reason and without the fingerprint

    def feed(self, event: AnswerEvent) -> bytes:
        """Return the bytes to forward to the agent after this event."""
        usage = _usage_only(event.data)
        if usage is not None:
            return _with_fingerprint(self.rest(), usage.get("system_fingerprint"))
        before = self.rest()
        if _FINISH.search(event.data) and _FINGERPRINT not in event.data:
            self._waiting = event.raw
            return before
        return before + event.raw

    def rest(self) -> bytes:
        """Return the bytes that wait, at the end of the stream or before another event."""
        waiting, self._waiting = self._waiting, b""
        return waiting


def _usage_only(data: bytes) -> dict[str, Any] | None:
    """Return the last chunk of a chat stream, which has usage and no choices. Return None for other chunks."""
    if b'"usage"' not in data:
        return None
    try:
        chunk = json.loads(data)
    except ValueError:
        return None
    return chunk if isinstance(chunk, dict) and chunk.get("choices") == [] and chunk.get("usage") else None


def _with_fingerprint(raw: bytes, fingerprint: object) -> bytes:
    """Return the bytes of a chunk with the field at its end."""
    end = raw.rfind(b"}")
    if end < 0 or not isinstance(fingerprint, str):
        return raw
    return b"".join((raw[:end], b",", _FINGERPRINT, b":", json.dumps(fingerprint).encode(), raw[end:]))
