"""Parsers for the answers of the four APIs: token usage, errors, and the marker that ends an answer.

An answer without its end marker counts as cut off, even if the connection was closed properly.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

Document = Mapping[str, Any]
_NOT_JSON: Final = object()  # not None, which stands for JSON's null, a complete document


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one answer. input includes cached (read from a cache) and written (to a cache); written includes written_1h."""

    input: int = 0
    cached: int = 0
    written: int = 0
    written_1h: int = 0
    output: int = 0


class Reading:
    """What was parsed of one answer. usage: None while unknown; ended: the answer is complete; failed: it contains an error."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self.usage: Usage | None = None
        self.ended = False
        self.failed = False

    def event(self, data: bytes) -> None:
        """Read the data of one server-sent event."""
        if data.strip() == b"[DONE]":
            self.ended = True
        elif any(mark in data for mark in self._dialect.marks):
            self._read(_parsed(data))

    def document(self, body: bytes) -> None:
        """Read an answer that is one JSON document instead of a stream of events. It has ended if the document is complete."""
        found = _parsed(body)
        for each in found if isinstance(found, list) else [found]:
            self._read(each)
        self.ended = found is not _NOT_JSON

    def _read(self, document: Any) -> None:
        if not isinstance(document, Mapping):
            return
        self.usage = self._dialect.usage(document, self.usage)
        self.ended = self.ended or self._dialect.ends(document)
        self.failed = self.failed or self._dialect.fails(document)


@dataclass(frozen=True)
class Dialect:
    """Parser for the answers of one API. marks: events that contain none of these bytes are not parsed.

    usage: maps a document and the usage so far to the new usage; ends, fails: whether a document ends the answer or reports an
    error; output_limit: maps a request to its maximum number of output tokens.
    """

    name: str
    marks: tuple[bytes, ...]
    usage: Callable[[Document, Usage | None], Usage | None]
    ends: Callable[[Document], bool]
    fails: Callable[[Document], bool]
    output_limit: Callable[[Document], Any]


def _parsed(text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return _NOT_JSON


def _part(document: Any, *path: str) -> Any:
    """Return the object at a path; an empty one if it is missing or not an object."""
    for name in path:
        document = document.get(name) if isinstance(document, Mapping) else None
    return document if isinstance(document, Mapping) else {}


def _count(document: Document, name: str) -> int:
    value = document.get(name)
    return value if isinstance(value, int) and value > 0 else 0


def _chat_usage(document: Document, before: Usage | None) -> Usage | None:
    if not (found := _part(document, "usage")):
        return before
    cached = _count(_part(found, "prompt_tokens_details"), "cached_tokens")
    return Usage(input=_count(found, "prompt_tokens"), cached=cached, output=_count(found, "completion_tokens"))


def _responses_usage(document: Document, before: Usage | None) -> Usage | None:
    if not (found := _part(document, "response", "usage") or _part(document, "usage")):
        return before
    cached = _count(_part(found, "input_tokens_details"), "cached_tokens")
    return Usage(input=_count(found, "input_tokens"), cached=cached, output=_count(found, "output_tokens"))


def _messages_usage(document: Document, before: Usage | None) -> Usage | None:
    """Anthropic: message_start has the input; message_delta has the output so far, and may correct the input."""
    found = _part(document, "message", "usage") or _part(document, "usage")
    if not found:
        return before
    output = _count(found, "output_tokens")
    if found.get("input_tokens") is None and before is not None:
        return Usage(before.input, before.cached, before.written, before.written_1h, output)
    cached, written = _count(found, "cache_read_input_tokens"), _count(found, "cache_creation_input_tokens")
    hour = _count(_part(found, "cache_creation"), "ephemeral_1h_input_tokens")
    return Usage(_count(found, "input_tokens") + cached + written, cached, written, hour, output)


def _gemini_usage(document: Document, before: Usage | None) -> Usage | None:
    if not (found := _part(document, "usageMetadata")):
        return before
    return Usage(
        input=_count(found, "promptTokenCount") + _count(found, "toolUsePromptTokenCount"),
        cached=_count(found, "cachedContentTokenCount"),
        output=_count(found, "candidatesTokenCount") + _count(found, "thoughtsTokenCount"),
    )


def _gemini_ends(document: Document) -> bool:
    candidates = document.get("candidates")
    finished = isinstance(candidates, list) and any(isinstance(each, Mapping) and each.get("finishReason") for each in candidates)
    return finished or bool(_part(document, "promptFeedback").get("blockReason"))


def _has_error(document: Document) -> bool:
    return bool(document.get("error")) or document.get("type") == "error"


CHAT: Final = Dialect(
    name="openai-chat",
    marks=(b'"usage"', b'"error"'),
    usage=_chat_usage,
    ends=lambda _: False,  # its end is ``data: [DONE]``, see Reading.event
    fails=_has_error,
    output_limit=lambda asked: asked.get("max_completion_tokens", asked.get("max_tokens")),
)
RESPONSES: Final = Dialect(
    name="openai-responses",
    marks=(b"response.completed", b"response.incomplete", b"response.failed", b'"error"'),
    usage=_responses_usage,
    ends=lambda event: event.get("type") in ("response.completed", "response.incomplete", "response.failed"),
    fails=lambda event: event.get("type") in ("response.failed", "error"),
    output_limit=lambda asked: asked.get("max_output_tokens"),
)
MESSAGES: Final = Dialect(
    name="anthropic-messages",
    marks=(b"message_start", b"message_delta", b"message_stop", b'"error"'),
    usage=_messages_usage,
    ends=lambda event: event.get("type") == "message_stop",
    fails=_has_error,
    output_limit=lambda asked: asked.get("max_tokens"),
)
GEMINI: Final = Dialect(
    name="gemini",
    marks=(b"usageMetadata", b"finishReason", b"blockReason", b'"error"'),
    usage=_gemini_usage,
    ends=_gemini_ends,
    fails=_has_error,
    output_limit=lambda asked: _part(asked, "generationConfig").get("maxOutputTokens"),
)
DIALECTS: Final = (CHAT, RESPONSES, MESSAGES, GEMINI)
