"""Parsers for the answers of the four model APIs: token usage, errors, and the marker that ends an answer.

An answer without its end marker counts as cut off, even if the connection was closed properly.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass
from typing import Any, Final

Document = Mapping[str, Any]
_GEMINI_CONFIGS: Final = ("generationConfig", "generation_config")
_REQUEST_ERRORS: Final = frozenset(
    (
        *(400, 413, 422),  # in errors that vLLM and OpenRouter send after status 200, once the model has started
        *("invalid_request_error", "context_length_exceeded", "invalid_prompt", "string_above_max_length", "request_too_large"),
        *("content_policy_violation", "bio_policy", "cyber_policy", "misalignment_policy_violation"),
        *("invalid_image", "invalid_image_format", "invalid_image_mode", "invalid_image_url", "invalid_base64_image"),
        *("image_too_large", "image_too_small", "image_file_too_large", "empty_image_file", "unsupported_image_media_type"),
        *("image_parse_error", "image_content_policy_violation", "image_file_not_found", "failed_to_download_image"),
        *("INVALID_ARGUMENT", "FAILED_PRECONDITION", "NOT_FOUND"),
    )
)
_NO_CREDIT: Final = "insufficient_quota"
_LIMIT_AND_REQUESTED: Final = re.compile(r"Limit (\d{1,15}), Requested (\d{1,15})")  # no "Used": that counts other requests, too
_CONFIGURATION_ERRORS: Final = frozenset(("API_KEY_INVALID", "billing_error", _NO_CREDIT, "invalid_api_key", "model_not_found"))
CONFIGURATION_MESSAGES: Final = ("Your credit balance is too low", "model:", "models/")
"""How messages of Anthropic and Gemini about credit and models start; these errors share their type with other errors. No field of
a request may have such a name, as messages about unknown fields start with the field's name."""
_MAX_TOKENS: Final = 10_000_000  # more than any model generates for one answer
_MAX_ANSWERS: Final = 128  # OpenAI's maximum; Gemini allows 8
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

    usage: None while unknown; ended: whether the answer is complete; failed: whether it contains an error; error: its message;
    blames_request: whether the request itself caused the error.
    """

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self.usage: Usage | None = None
        self.ended = False
        self.failed = False
        self.error = ""
        self.blames_request = False

    def event(self, data: bytes) -> None:
        """Read the data of one server-sent event."""
        if data.strip() == b"[DONE]":
            self.ended = True
        elif any(mark in data for mark in self._dialect.marks):
            self._read(_parsed(data))

    def document(self, body: bytes) -> None:
        """Read an answer that is one JSON document instead of a stream of events. It counts as ended if it is valid JSON."""
        found = _parsed(body)
        for each in found if isinstance(found, list) else [found]:
            self._read(each)
        self.ended = found is not _NOT_JSON

    def _read(self, document: Any) -> None:
        self.ended = self.ended or document is _TOO_DEEP
        if not isinstance(document, Mapping):
            return
        self.usage = self._dialect.usage(document, self.usage)
        self.ended = self.ended or self._dialect.ends(document)
        if self._dialect.fails(document):
            self.failed = True
            self.error = str(_error_of(document).get("message") or "")
            self.blames_request = self.blames_request or blames_request(document)


@dataclass(frozen=True)
class Dialect:
    """Parser for the answers of one API. marks: events that contain none of these bytes are not parsed.

    usage: maps a document and the usage so far to the new usage; ends, fails: whether a document ends the answer or reports an
    error; output_limit: maps a request to its maximum of output tokens per answer, or None; answers: maps a request to the number
    of answers that it asks for.
    """

    name: str
    marks: tuple[bytes, ...]
    usage: Callable[[Document, Usage | None], Usage | None]
    ends: Callable[[Document], bool]
    fails: Callable[[Document], bool]
    output_limit: Callable[[Document], int | None]
    answers: Callable[[Document], int] = lambda _: 1


def _parsed(text: bytes) -> Any:
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


def _count(document: Document, name: str, missing: int = 0) -> int:
    """Return a number of tokens. missing: result if the document has none."""
    value = document.get(name)
    if value is None:
        return missing
    return value if isinstance(value, int) and value > 0 else 0


def _chat_usage(document: Document, before: Usage | None) -> Usage | None:
    if not (found := _part(document, "usage")):
        return before
    given = _count(found, "prompt_tokens")
    cached = _count(_part(found, "prompt_tokens_details"), "cached_tokens", _count(found, "cached_tokens"))  # the latter for Kimi
    # xAI, and Gemini's OpenAI-compatible API, count thinking tokens in total_tokens only.
    output = max(_count(found, "completion_tokens"), _count(found, "total_tokens") - given)
    return Usage(input=given, cached=cached, output=output)


def _responses_usage(document: Document, before: Usage | None) -> Usage | None:
    if not (found := _part(document, "response", "usage") or _part(document, "usage")):
        return before
    cached = _count(_part(found, "input_tokens_details"), "cached_tokens")
    return Usage(input=_count(found, "input_tokens"), cached=cached, output=_count(found, "output_tokens"))


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
    new = _count(found, "input_tokens", known.input - known.cached - known.written)
    hour = _count(_part(found, "cache_creation"), "ephemeral_1h_input_tokens", min(known.written_1h, written))
    return Usage(new + cached + written, cached, written, hour, _count(found, "output_tokens", known.output))


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


def _error_of(document: Document) -> Document:
    return _part(document, "response", "error") or _part(document, "error") or document


def blames_request(document: Document) -> bool:
    """Return whether the request itself caused the error in a document, e.g. with a prompt that is too long."""
    error = _error_of(document)
    given = (error.get(name) for name in ("type", "code", "status"))
    return any(each in _REQUEST_ERRORS for each in given if isinstance(each, (str, int)))


def blames_configuration(body: bytes) -> bool:
    """Return whether an error's body shows that the key or the model is wrong, or that the account has no credit. Some of these
    answers have status 400."""
    found = _parsed(body)
    error = _part(found[0] if isinstance(found, list) and found else found, "error")  # Gemini's streams without alt=sse are lists
    details = error.get("details")
    named = [error, *(each for each in details if isinstance(each, Mapping))] if isinstance(details, list) else [error]
    given = {str(each.get(name)) for each in named for name in ("type", "code", "reason")}
    return bool(given & _CONFIGURATION_ERRORS) or str(error.get("message")).startswith(CONFIGURATION_MESSAGES)


def has_no_credit(body: bytes) -> bool:
    """Return whether a 429 shows that the account has no credit, so that a later request fails, too."""
    error = _part(_parsed(body), "error")
    return _NO_CREDIT in (error.get("code"), error.get("type"))


def exceeds_limit_alone(body: bytes) -> bool:
    """Return whether a 429 shows that the request alone exceeds a rate limit, so that it always fails, as OpenAI reports it. If the
    limit is 0, the account cannot use the model: this depends on no request."""
    found = _LIMIT_AND_REQUESTED.search(str(_part(_parsed(body), "error").get("message")))
    return found is not None and 0 < int(found[1]) < int(found[2])


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
    marks=(b'"usage"', b'"error"'),
    usage=_chat_usage,
    ends=lambda _: False,  # a stream of this API ends with ``data: [DONE]``, see Reading.event
    fails=_has_error,
    output_limit=lambda asked: _largest(asked.get("max_completion_tokens"), asked.get("max_tokens")),
    answers=lambda asked: _answers(asked.get("n")),
)
RESPONSES: Final = Dialect(
    name="openai-responses",
    marks=(b"response.completed", b"response.incomplete", b"response.failed", b'"error"'),
    usage=_responses_usage,
    ends=lambda event: event.get("type") in ("response.completed", "response.incomplete", "response.failed"),
    fails=lambda event: event.get("type") in ("response.failed", "error") or bool(event.get("error")),
    output_limit=lambda asked: _largest(asked.get("max_output_tokens")),
)
MESSAGES: Final = Dialect(
    name="anthropic-messages",
    marks=(b"message_start", b"message_delta", b"message_stop", b'"error"'),
    usage=_messages_usage,
    ends=lambda event: event.get("type") == "message_stop",
    fails=_has_error,
    output_limit=lambda asked: _largest(asked.get("max_tokens")),
)
GEMINI: Final = Dialect(
    name="gemini",
    marks=(b"usageMetadata", b"finishReason", b"blockReason", b'"error"'),
    usage=_gemini_usage,
    ends=_gemini_ends,
    fails=_has_error,
    output_limit=_gemini_limit,
    answers=_gemini_answers,
)
