"""Parsers for the answers of the four model APIs: token usage, errors, and the marker that ends an answer.

An answer without its end marker counts as cut off, even if the connection was closed properly, unless it has a finish reason and
its usage. A complete document or stream without a part of an answer is no answer of the API.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass, replace
from typing import Any, Final

from multistep.gateway.model_api.answer_memory import MAX_PARTS, AnswerTooLarge, has_too_many_parts
from multistep.gateway.model_api.error_blame import ProviderError, parse_error

Document = Mapping[str, Any]
_GEMINI_CONFIGS: Final = ("generationConfig", "generation_config")
_MAX_TOKENS: Final = 10_000_000  # more than any model generates for one answer
_MAX_COUNT: Final = 10**12  # a larger number of tokens is no number of tokens; sqlite cannot store numbers from 2**63 on
_MAX_ANSWERS: Final = 128  # OpenAI's maximum; Gemini allows 8
_ERROR_BYTES: Final = 1000
_NAME: Final = 200  # characters of a model's name
_MODEL_FIELDS: Final = (((), "model"), (("response",), "model"), (("message",), "model"), ((), "modelVersion"))
_NOT_JSON: Final = object()  # result for text that is not JSON; None is the result for the valid JSON document null
_TOO_DEEP: Final = object()  # result for JSON that is nested too deeply, e.g. if the answer repeats such a part of its request


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one answer. input includes cached (cache reads) and written (cache writes).

    written_1h: the part of ``written`` that the provider caches for 1 hour.
    """

    input: int = 0
    cached: int = 0
    written: int = 0
    written_1h: int = 0
    output: int = 0


class Reading:
    """Parses one answer.

    usage: None while unknown; ended: whether the answer is complete; answers: whether it has a part of an answer of the API;
    failure: the error that it contains, if any; model: the model that it names, "" for none; malformed: whether it has an event
    that is no JSON.
    """

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._finished = False
        self.usage: Usage | None = None
        self.ended = False
        self.answers = False
        self.failure: ProviderError | None = None
        self.model = ""
        self.malformed = False

    def event(self, data: bytes, name: bytes = b"") -> None:
        """Read the data of one server-sent event. name: its name, b"" without one. Raises AnswerTooLarge."""
        data = data.strip()
        if not data:
            return
        if data == b"[DONE]":
            self.ended = True
            return
        found = _parsed(data)
        if found is _NOT_JSON:
            self.malformed = True
        if name == b"error" and not isinstance(found, Mapping):
            found = {"error": {"message": data[:_ERROR_BYTES].decode(errors="replace")}}
        self._read(found, is_error=name == b"error")

    def document(self, body: bytes) -> None:
        """Read an answer that is one JSON document instead of a stream of events. It counts as ended if it is valid JSON.

        Raises AnswerTooLarge."""
        found = _parsed(body)
        for each in found if isinstance(found, list) else [found]:
            self._read(each)
        self.ended = found is not _NOT_JSON

    def close(self, *, usage_expected: bool) -> None:
        """Note that the stream ended properly. It is complete without an end marker, too, if it has a finish reason and its usage.

        usage_expected: whether the provider was asked for the usage.
        """
        self.ended = self.ended or (self._finished and (self.usage is not None or not usage_expected))

    def _read(self, document: Any, *, is_error: bool = False) -> None:
        if document is _TOO_DEEP:
            self.ended = self.answers = True
        if not isinstance(document, Mapping):
            return
        self.usage = self._dialect.usage(document, self.usage)
        self.model = _model(document) or self.model
        self.answers = self.answers or self._dialect.answers_in(document)
        self._finished = self._finished or self._dialect.finishes(document)
        self.ended = self.ended or self._dialect.ends(document)
        if is_error or self._dialect.fails(document):
            self.failure = parse_error(document)


@dataclass(frozen=True)
class Dialect:
    """Parser for the answers of one API.

    usage: maps a document and the usage so far to the new usage; answers_in: whether a document is an answer or a part of one;
    finishes: whether it has the reason why the model stopped; ends, fails: whether it ends the answer or reports an error;
    output_limit: maps a request to its maximum of output tokens per answer, or None; answers: maps a request to the number of
    answers that it asks for.
    """

    name: str
    usage: Callable[[Document, Usage | None], Usage | None]
    answers_in: Callable[[Document], bool]
    finishes: Callable[[Document], bool]
    ends: Callable[[Document], bool]
    fails: Callable[[Document], bool]
    output_limit: Callable[[Document], int | None]
    answers: Callable[[Document], int] = lambda _: 1


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
    """Return the object at a path; an empty one if it is missing or not an object."""
    for name in path:
        document = document.get(name) if isinstance(document, Mapping) else None
    return document if isinstance(document, Mapping) else {}


def _model(document: Document) -> str:
    """Return the first characters of the model that a document names, in the way of any of the APIs; "" for none."""
    named = [_part(document, *path).get(name) for path, name in _MODEL_FIELDS]
    return next((each[:_NAME] for each in named if isinstance(each, str)), "")


def _count(document: Document, name: str, missing: int = 0) -> int:
    """Return a number of tokens. missing: result if the document has none."""
    value = document.get(name)
    if value is None:
        return missing
    try:
        return min(_MAX_COUNT, max(0, int(float(value)))) if isinstance(value, (int, float, str)) else 0
    except (ValueError, OverflowError):
        return 0


def _chat_usage(document: Document, before: Usage | None) -> Usage | None:
    if not (found := _part(document, "usage")):
        return before
    given = _count(found, "prompt_tokens")
    cached = _count(_part(found, "prompt_tokens_details"), "cached_tokens", _count(found, "cached_tokens"))  # the latter for Kimi
    # xAI, and Gemini's OpenAI-compatible API, count thinking tokens in total_tokens only.
    output = max(_count(found, "completion_tokens"), _count(found, "total_tokens") - given)
    return _at_least(before, Usage(input=given, cached=cached, output=output))


def _responses_usage(document: Document, before: Usage | None) -> Usage | None:
    if not (found := _part(document, "response", "usage") or _part(document, "usage")):
        return before
    cached = _count(_part(found, "input_tokens_details"), "cached_tokens")
    return _at_least(before, Usage(input=_count(found, "input_tokens"), cached=cached, output=_count(found, "output_tokens")))


def _at_least(before: Usage | None, found: Usage) -> Usage:
    """Return the newer counts, of which none is less than before: some APIs end a stream with counts of 0."""
    if before is None:
        return found
    latest = found if found.input >= before.input else before
    return replace(latest, output=max(before.output, found.output))


def _messages_usage(document: Document, before: Usage | None) -> Usage | None:
    """Return Anthropic's usage: message_start has the input; message_delta has the output so far, and may correct the input. A
    number that an event lacks keeps its value, e.g. written_1h: message_delta lacks it.

    These counts leave out passes of the model that give no message, such as a compaction. If the answer lists such a pass, the
    usage is the sum of all passes.
    """
    found = _part(document, "message", "usage") or _part(document, "usage")
    if not found:
        return before
    passes = found.get("iterations")
    if isinstance(passes, list) and any(_part(each).get("type") != "message" for each in passes):
        each_pass = [astuple(_of_pass(_part(each), Usage())) for each in passes]
        return Usage(*map(sum, zip(*each_pass, strict=True)))
    return _of_pass(found, before or Usage())


def _of_pass(found: Document, known: Usage) -> Usage:
    cached = _count(found, "cache_read_input_tokens", known.cached)
    written = _count(found, "cache_creation_input_tokens", known.written)
    known_new = known.input - known.cached - known.written
    new = max(_count(found, "input_tokens", known_new), min(known_new, known.input - cached - written))  # tokens may become cached
    hour = _count(_part(found, "cache_creation"), "ephemeral_1h_input_tokens", min(known.written_1h, written))
    return Usage(new + cached + written, cached, written, hour, _count(found, "output_tokens", known.output))


def _gemini_usage(document: Document, before: Usage | None) -> Usage | None:
    if not (found := _part(document, "usageMetadata")):
        return before
    now = Usage(
        input=_count(found, "promptTokenCount") + _count(found, "toolUsePromptTokenCount"),
        cached=_count(found, "cachedContentTokenCount"),
        output=_count(found, "candidatesTokenCount") + _count(found, "thoughtsTokenCount"),
    )
    return _at_least(before, now)


def _members(document: Document, name: str) -> list[Document]:
    """Return the objects in a list of the document."""
    found = document.get(name)
    return [each for each in found if isinstance(each, Mapping)] if isinstance(found, list) else []


def _chat_answers(document: Document) -> bool:
    return any(isinstance(each.get(name), Mapping) for each in _members(document, "choices") for name in ("message", "delta"))


def _chat_fails(document: Document) -> bool:
    return _has_error(document) or any(
        _has_error(each) or each.get("finish_reason") == "error" for each in _members(document, "choices")
    )


def _responses_answers(document: Document) -> bool:
    whole = _part(document, "response") or document
    unfinished = whole.get("status") in ("incomplete", "in_progress", "queued")  # before the first output
    return bool(_members(whole, "output")) or unfinished or str(document.get("type")).startswith("response.output_")


def _messages_answers(document: Document) -> bool:
    whole = _part(document, "message") or document
    return isinstance(whole.get("content"), list) or str(document.get("type")).startswith("content_block")


def _messages_finishes(document: Document) -> bool:
    return bool(_part(document, "delta").get("stop_reason"))


def _gemini_blocks(document: Document) -> bool:
    return bool(_part(document, "promptFeedback").get("blockReason"))


def _gemini_ends(document: Document) -> bool:
    return _gemini_blocks(document) or any(each.get("finishReason") for each in _members(document, "candidates"))


def _has_error(document: Document) -> bool:
    return bool(document.get("error")) or document.get("type") == "error" or document.get("object") == "error"


def _largest(*limits: Any) -> int | None:
    """Return the largest limit that is set; None if no limit is set, or if one is not a positive integer, because the provider may
    ignore such a limit."""
    given = [each for each in limits if each is not None]
    return min(max(given), _MAX_TOKENS) if given and all(type(each) is int and each > 0 for each in given) else None


def _answers(count: Any) -> int:
    """Return the number of answers; if ``count`` is no integer, the providers' maximum, because a provider may convert it to any
    number."""
    if count is None:
        return 1
    return min(max(count, 1), _MAX_ANSWERS) if type(count) is int else _MAX_ANSWERS


def _gemini_limit(asked: Document) -> int | None:
    """Return the maximum in generationConfig: the larger one, if it is set twice. Gemini also accepts the names in snake_case."""
    configs = [_part(asked, name) for name in _GEMINI_CONFIGS]
    return _largest(*(each.get(name) for each in configs for name in ("maxOutputTokens", "max_output_tokens")))


def _gemini_answers(asked: Document) -> int:
    configs = [_part(asked, name) for name in _GEMINI_CONFIGS]
    return max(_answers(each.get(name)) for each in configs for name in ("candidateCount", "candidate_count"))


CHAT: Final = Dialect(
    name="openai-chat",
    usage=_chat_usage,
    answers_in=_chat_answers,
    finishes=lambda chunk: any(each.get("finish_reason") for each in _members(chunk, "choices")),
    ends=lambda _: False,  # a stream of this API ends with ``data: [DONE]``, see Reading.event
    fails=_chat_fails,
    output_limit=lambda asked: _largest(asked.get("max_completion_tokens"), asked.get("max_tokens")),
    answers=lambda asked: _answers(asked.get("n")),
)
RESPONSES: Final = Dialect(
    name="openai-responses",
    usage=_responses_usage,
    answers_in=_responses_answers,
    finishes=lambda _: False,
    ends=lambda event: event.get("type") in ("response.completed", "response.incomplete", "response.failed"),
    fails=lambda event: event.get("type") in ("response.failed", "error") or bool(event.get("error")),
    output_limit=lambda asked: _largest(asked.get("max_output_tokens")),
)
MESSAGES: Final = Dialect(
    name="anthropic-messages",
    usage=_messages_usage,
    answers_in=_messages_answers,
    finishes=_messages_finishes,
    ends=lambda event: event.get("type") == "message_stop",
    fails=_has_error,
    output_limit=lambda asked: _largest(asked.get("max_tokens")),
)
GEMINI: Final = Dialect(
    name="gemini",
    usage=_gemini_usage,
    answers_in=lambda document: bool(_members(document, "candidates")) or _gemini_blocks(document),
    finishes=_gemini_ends,
    ends=_gemini_ends,
    fails=_has_error,
    output_limit=_gemini_limit,
    answers=_gemini_answers,
)
