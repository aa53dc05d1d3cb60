"""Parsers for the answers of the four model APIs: events, token usage, errors, and the marker that ends an answer.

An answer without its end marker counts as cut off, even if the connection was closed properly, unless it has a finish reason and
its usage. A document or stream may be complete and still contain no answer of the API, e.g. if it is a proxy's error page.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import astuple, dataclass, replace
from typing import Any, Final

from multistep.gateway.model_api.answer_memory import MAX_PARTS, AnswerTooLarge, has_too_many_parts
from multistep.gateway.model_api.error_blame import ProviderError, parse_error

Document = Mapping[str, Any]
_GEMINI_CONFIGS: Final = ("generationConfig", "generation_config")
_MAX_TOKENS: Final = 10_000_000  # more than any model generates for one answer
_MAX_COUNT: Final = 10**12  # a larger number cannot be a count of tokens, and sqlite cannot store numbers of 2**63 or more
_MAX_ANSWERS: Final = 128  # OpenAI's maximum. Gemini allows 8
_ERROR_BYTES: Final = 1000
_NAME: Final = 200  # maximum characters of a model's name
_MODEL_FIELDS: Final = (((), "model"), (("response",), "model"), (("message",), "model"), ((), "modelVersion"))
_NOT_JSON: Final = object()  # result for text that is not JSON, because the result for the JSON document null is None
_TOO_DEEP: Final = object()  # result for JSON that is nested too deeply, e.g. in an answer that repeats a part of its request


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Token counts of one answer."""

    input: int = 0
    """All tokens of input, with those in ``cached`` and ``written``."""
    cached: int = 0
    """Tokens of input that the provider read from its cache."""
    written: int = 0
    """Tokens of input that the provider wrote to its cache."""
    written_1h: int = 0
    """The part of ``written`` that the provider caches for 1 hour."""
    output: int = 0


class AnswerParser:
    """Parses one answer for its usage, its errors and its end."""

    def __init__(self, api: ApiFormat, *, reads_model: bool = False) -> None:
        """Create a parser. With ``reads_model``, it also reads the name of the model that answers."""
        self.usage: TokenUsage | None = None
        """Tokens of the answer, or None while they are unknown."""
        self.ended = False
        """Whether the answer is complete."""
        self.answers = False
        """Whether the document or stream contains at least a part of an answer of the API."""
        self.failure: ProviderError | None = None
        """The error that the answer contains, if any."""
        self.malformed = False
        """Whether the answer has an event that is not JSON."""
        self.model = ""
        """The model that the answer names, or ""."""
        self._api = api
        self._reads_model = reads_model
        self._finished = False

    def event(self, data: bytes, name: bytes = b"") -> None:
        """Read the data of one server-sent event, whose name may be b"". Raises AnswerTooLarge."""
        data = data.strip()
        if not data:
            return
        if data == b"[DONE]":
            self.ended = True
            return
        document = _parsed(data)
        if document is _NOT_JSON:
            self.malformed = True
        if name == b"error" and not isinstance(document, Mapping):
            document = {"error": {"message": data[:_ERROR_BYTES].decode(errors="replace")}}
        self._read(document, is_error=name == b"error")

    def document(self, body: bytes) -> None:
        """Read an answer that is one JSON document instead of a stream of events. It counts as ended if it is valid JSON.

        Raises AnswerTooLarge."""
        document = _parsed(body)
        for part in document if isinstance(document, list) else [document]:
            self._read(part)
        self.ended = document is not _NOT_JSON

    def close(self, *, usage_expected: bool) -> None:
        """Record that the stream ended properly. Without an end marker, it is complete if it has a finish reason and its usage.

        ``usage_expected`` tells whether the gateway or the agent asked the provider for the usage.
        """
        self.ended = self.ended or (self._finished and (self.usage is not None or not usage_expected))

    def _read(self, document: Any, *, is_error: bool = False) -> None:
        if document is _TOO_DEEP:
            self.ended = self.answers = True
        if not isinstance(document, Mapping):
            return
        self.usage = self._api.usage(document, self.usage)
        if self._reads_model:
            self.model = _model(document) or self.model
        self.answers = self.answers or self._api.answers_in(document)
        self._finished = self._finished or self._api.finishes(document)
        self.ended = self.ended or self._api.ends(document)
        if is_error or self._api.fails(document):
            self.failure = parse_error(document)


@dataclass(frozen=True)
class ApiFormat:
    """Functions that read the requests and answers of one API."""

    usage: Callable[[Document, TokenUsage | None], TokenUsage | None]
    """Maps a document of an answer, and the usage until then, to the new usage."""
    answers_in: Callable[[Document], bool]
    """Whether a document is an answer or a part of one."""
    finishes: Callable[[Document], bool]
    """Whether a document has a finish reason, which says why the model stopped."""
    ends: Callable[[Document], bool]
    """Whether a document is the end of the answer."""
    fails: Callable[[Document], bool]
    """Whether a document reports an error."""
    output_limit: Callable[[Document], int | None]
    """Maps a request to its maximum of output tokens per answer, or to None if it sets none."""
    answers: Callable[[Document], int] = lambda _: 1
    """Maps a request to the number of answers that it asks for."""


def _parsed(text: bytes) -> Any:
    if has_too_many_parts(text):
        raise AnswerTooLarge(f"the provider's answer has more than {MAX_PARTS:,} values")
    try:
        return json.loads(text)
    except ValueError:
        return _NOT_JSON
    except RecursionError:
        return _TOO_DEEP


def _part(document: Any, *path: str) -> Any:
    """Return the object at a path, or an empty object if there is none."""
    for name in path:
        document = document.get(name) if isinstance(document, Mapping) else None
    return document if isinstance(document, Mapping) else {}


def _model(document: Document) -> str:
    """Return the start of the model's name in a document of any of the APIs, or ""."""
    named = [_part(document, *path).get(name) for path, name in _MODEL_FIELDS]
    return next((name[:_NAME] for name in named if isinstance(name, str)), "")


def _count(document: Document, name: str, missing: int = 0) -> int:
    """Return the count of tokens in a field, or ``missing`` if the document lacks the field."""
    value = document.get(name)
    if value is None:
        return missing
    try:
        return min(_MAX_COUNT, max(0, int(float(value)))) if isinstance(value, (int, float, str)) else 0
    except (ValueError, OverflowError):
        return 0


def _chat_usage(document: Document, before: TokenUsage | None) -> TokenUsage | None:
    if not (counts := _part(document, "usage")):
        return before
    given = _count(counts, "prompt_tokens")
    # Kimi has cached_tokens at the top.
    cached = _count(_part(counts, "prompt_tokens_details"), "cached_tokens", _count(counts, "cached_tokens"))
    # xAI and Gemini's OpenAI-compatible API count thinking tokens only in total_tokens.
    output = max(_count(counts, "completion_tokens"), _count(counts, "total_tokens") - given)
    return _at_least(before, TokenUsage(input=given, cached=cached, output=output))


def _responses_usage(document: Document, before: TokenUsage | None) -> TokenUsage | None:
    if not (counts := _part(document, "response", "usage") or _part(document, "usage")):
        return before
    cached = _count(_part(counts, "input_tokens_details"), "cached_tokens")
    newer = TokenUsage(input=_count(counts, "input_tokens"), cached=cached, output=_count(counts, "output_tokens"))
    return _at_least(before, newer)


def _at_least(before: TokenUsage | None, newer: TokenUsage) -> TokenUsage:
    """Return the newer counts, or the former ones where they are larger, because some APIs end a stream with counts of 0."""
    if before is None:
        return newer
    latest = newer if newer.input >= before.input else before
    return replace(latest, output=max(before.output, newer.output))


def _messages_usage(document: Document, before: TokenUsage | None) -> TokenUsage | None:
    """Return Anthropic's usage. The event message_start has the tokens of input. The event message_delta has the tokens of output
    so far, and may correct the input. A count that an event lacks keeps its value.

    These counts leave out passes of the model that produce no message, such as a compaction. If the answer lists such a pass, the
    usage is the sum of all passes.
    """
    counts = _part(document, "message", "usage") or _part(document, "usage")
    if not counts:
        return before
    passes = counts.get("iterations")
    if isinstance(passes, list) and any(_part(single).get("type") != "message" for single in passes):
        each_pass = [astuple(_of_pass(_part(single), TokenUsage())) for single in passes]
        return TokenUsage(*map(sum, zip(*each_pass, strict=True)))
    return _of_pass(counts, before or TokenUsage())


def _of_pass(counts: Document, known: TokenUsage) -> TokenUsage:
    cached = _count(counts, "cache_read_input_tokens", known.cached)
    written = _count(counts, "cache_creation_input_tokens", known.written)
    known_new = known.input - known.cached - known.written
    # A later event may count tokens as cached that were new before.
    new = max(_count(counts, "input_tokens", known_new), min(known_new, known.input - cached - written))
    hour = _count(_part(counts, "cache_creation"), "ephemeral_1h_input_tokens", min(known.written_1h, written))
    return TokenUsage(new + cached + written, cached, written, hour, _count(counts, "output_tokens", known.output))


def _gemini_usage(document: Document, before: TokenUsage | None) -> TokenUsage | None:
    if not (counts := _part(document, "usageMetadata")):
        return before
    now = TokenUsage(
        input=_count(counts, "promptTokenCount") + _count(counts, "toolUsePromptTokenCount"),
        cached=_count(counts, "cachedContentTokenCount"),
        output=_count(counts, "candidatesTokenCount") + _count(counts, "thoughtsTokenCount"),
    )
    return _at_least(before, now)


def _members(document: Document, name: str) -> list[Document]:
    """Return the objects in the list that a field contains, or an empty list."""
    members = document.get(name)
    return [member for member in members if isinstance(member, Mapping)] if isinstance(members, list) else []


def _chat_answers(document: Document) -> bool:
    return any(isinstance(choice.get(name), Mapping) for choice in _members(document, "choices") for name in ("message", "delta"))


def _chat_fails(document: Document) -> bool:
    return _has_error(document) or any(
        _has_error(choice) or choice.get("finish_reason") == "error" for choice in _members(document, "choices")
    )


def _responses_answers(document: Document) -> bool:
    whole = _part(document, "response") or document
    unfinished = whole.get("status") in ("incomplete", "in_progress", "queued")  # such a response may have no output yet
    return bool(_members(whole, "output")) or unfinished or str(document.get("type")).startswith("response.output_")


def _messages_answers(document: Document) -> bool:
    whole = _part(document, "message") or document
    return isinstance(whole.get("content"), list) or str(document.get("type")).startswith("content_block")


def _messages_finishes(document: Document) -> bool:
    return bool(_part(document, "delta").get("stop_reason"))


def _gemini_blocks(document: Document) -> bool:
    return bool(_part(document, "promptFeedback").get("blockReason"))


def _gemini_ends(document: Document) -> bool:
    return _gemini_blocks(document) or any(candidate.get("finishReason") for candidate in _members(document, "candidates"))


def _has_error(document: Document) -> bool:
    return bool(document.get("error")) or document.get("type") == "error" or document.get("object") == "error"


def _largest(*limits: Any) -> int | None:
    """Return the largest limit that is set. Return None if no limit is set, or if one is not a positive integer, because the
    provider may ignore such a limit."""
    given = [limit for limit in limits if limit is not None]
    return min(max(given), _MAX_TOKENS) if given and all(type(limit) is int and limit > 0 for limit in given) else None


def _answers(count: Any) -> int:
    """Return the number of answers that a request asks for. If ``count`` is no integer, this is the providers' maximum, because a
    provider may convert the value to any number."""
    if count is None:
        return 1
    return min(max(count, 1), _MAX_ANSWERS) if type(count) is int else _MAX_ANSWERS


def _gemini_limit(asked: Document) -> int | None:
    """Return the maximum in generationConfig. Gemini also accepts names in snake_case. If both are set, the larger one counts."""
    configs = [_part(asked, name) for name in _GEMINI_CONFIGS]
    return _largest(*(config.get(name) for config in configs for name in ("maxOutputTokens", "max_output_tokens")))


def _gemini_answers(asked: Document) -> int:
    configs = [_part(asked, name) for name in _GEMINI_CONFIGS]
    return max(_answers(config.get(name)) for config in configs for name in ("candidateCount", "candidate_count"))


CHAT: Final = ApiFormat(
    usage=_chat_usage,
    answers_in=_chat_answers,
    finishes=lambda chunk: any(choice.get("finish_reason") for choice in _members(chunk, "choices")),
    ends=lambda _: False,  # AnswerParser.event reads the end of this API's streams, ``data: [DONE]``
    fails=_chat_fails,
    output_limit=lambda asked: _largest(asked.get("max_completion_tokens"), asked.get("max_tokens")),
    answers=lambda asked: _answers(asked.get("n")),
)
RESPONSES: Final = ApiFormat(
    usage=_responses_usage,
    answers_in=_responses_answers,
    finishes=lambda _: False,
    ends=lambda event: event.get("type") in ("response.completed", "response.incomplete", "response.failed"),
    fails=lambda event: event.get("type") in ("response.failed", "error") or bool(event.get("error")),
    output_limit=lambda asked: _largest(asked.get("max_output_tokens")),
)
MESSAGES: Final = ApiFormat(
    usage=_messages_usage,
    answers_in=_messages_answers,
    finishes=_messages_finishes,
    ends=lambda event: event.get("type") == "message_stop",
    fails=_has_error,
    output_limit=lambda asked: _largest(asked.get("max_tokens")),
)
GEMINI: Final = ApiFormat(
    usage=_gemini_usage,
    answers_in=lambda document: bool(_members(document, "candidates")) or _gemini_blocks(document),
    finishes=_gemini_ends,
    ends=_gemini_ends,
    fails=_has_error,
    output_limit=_gemini_limit,
    answers=_gemini_answers,
)


_BLANK_LINE: Final = re.compile(rb"(?:\r\n|\n|\r(?!\n)){2}")
_LINE_END: Final = re.compile(rb"\r\n|\n|\r")
_LONGEST_BLANK_LINE: Final = 4


@dataclass(frozen=True, slots=True)
class AnswerEvent:
    """One event of a stream."""

    raw: bytes
    """The event's bytes, with the blank line that ends it."""
    data: bytes
    """The text of the event's ``data:`` lines."""
    name: bytes = b""


class EventReader:
    """Splits a stream, which arrives in pieces of any size, into events. The ``raw`` bytes of all events and ``rest`` make up the
    stream."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, piece: bytes) -> list[AnswerEvent]:
        """Return the events that this piece completes."""
        start = max(0, len(self._pending) - _LONGEST_BLANK_LINE)
        self._pending += piece
        events = []
        taken = 0
        for end in _ends_of_blank_lines(self._pending, start):
            events.append(_event(bytes(self._pending[taken:end])))
            taken = end
        del self._pending[:taken]
        return events

    @property
    def pending(self) -> int:
        """The number of bytes of the incomplete event."""
        return len(self._pending)

    def rest(self) -> AnswerEvent | None:
        """Return the incomplete event at the end of the stream, or None if the last event is complete."""
        left = bytes(self._pending)
        self._pending.clear()
        return _event(left) if left else None


def _ends_of_blank_lines(text: bytearray, start: int) -> Iterator[int]:
    if text.find(b"\r", start) >= 0:
        yield from (blank.end() for blank in _BLANK_LINE.finditer(text, start))
        return
    while (at := text.find(b"\n\n", start)) >= 0:  # the regular expression takes 20 times as long, milliseconds for a long prompt
        start = at + 2
        yield start


def _event(raw: bytes) -> AnswerEvent:
    lines = _LINE_END.split(raw) if b"\r" in raw else raw.split(b"\n")
    names = [line[6:].strip() for line in lines if line.startswith(b"event:")]
    data = b"\n".join(line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:"))
    return AnswerEvent(raw, data, names[-1] if names else b"")
