"""Parses the bodies of requests for the requested model, and for the fields that limit the request's tokens.

The gateway changes a body only to ask the provider for the token usage of a chat stream, and for token ids if it records them.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from json.decoder import scanstring  # type: ignore[attr-defined]  # not in typeshed
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from multistep.gateway.model_api.answer_memory import MAX_PARTS, has_too_many_parts
from multistep.gateway.model_api.answer_parsers import CHAT, MESSAGES
from multistep.gateway.model_api.costly_content import asks_for_caching, asks_for_tier, is_opaque, other_models, provider_content
from multistep.gateway.model_api.error_blame import CONFIGURATION_MESSAGES
from multistep.gateway.model_api.json_text import past, space
from multistep.gateway.model_api.messages_as_chat import NotConvertible, to_chat
from multistep.gateway.model_api.routes import Route
from multistep.gateway.model_api.token_fields import FIELDS

_DECODER: Final = json.JSONDecoder()
_USAGE_WANTED: Final = '{"include_usage":true}'
_NAME: Final = 201  # other models' names are cut to one character more than a valid name has, so that a longer name stays invalid
_MAX_OTHERS: Final = 32  # other models whose prices are compared, which takes 0.1 ms each. Further ones count as one unknown model
_MODEL: Final = re.compile(r"[!-~]{1,200}")  # agents choose the name, and the ledger stores it
_MAX_FIELDS: Final = 1000  # maximum fields of the body's top-level object. Every API has fewer than a hundred
# Fields of requests to vLLM and SGLang with which tokens are not sampled as their log-probabilities say.
_CONSTRAINTS: Final = (
    "allowed_token_ids",
    "bad_words",
    "custom_logit_processor",
    "ebnf",
    "guided_choice",
    "guided_grammar",
    "guided_json",
    "guided_regex",
    "ignore_eos",
    "json_schema",
    "logit_bias",
    "logits_processors",
    "lora_path",
    "min_tokens",
    "regex",
    "structural_tag",
    "structured_outputs",
    "use_beam_search",
    "vllm_xargs",
)
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


class InvalidBody(Exception):
    """The body is not a JSON object, or is one that JSON parsers read in different ways. The message is shown to the agent."""


@dataclass(frozen=True)
class ParsedRequest:
    """The parts of a request's body that the gateway reads."""

    body: bytes
    """The bytes to send to the provider."""
    model: str
    original: bytes | None = None
    """The body without the field that asks for the usage of a stream. It is set if the gateway added the field to ``body``."""
    strips_usage: bool = False
    """Whether to remove the event with the usage from the answer, because the agent did not ask for the usage."""
    output_tokens: int | None = None
    """Maximum of output tokens that the request sets for all its answers together, or None."""
    answers: int = 1
    """Number of answers that the request asks for."""
    opaque: bool = False
    """Whether the request may have more tokens of input than bytes (costly_content.is_opaque)."""
    caches: bool = False
    """Whether the request asks Anthropic to cache parts of its input."""
    tier: bool = False
    """Whether the request names a service tier that may cost more than the usual one."""
    others: tuple[str, ...] = ()
    """Names of other models that may answer the request."""
    added: frozenset[str] = frozenset()
    """The fields that the gateway added to record tokens (token_fields.FIELDS)."""
    converted: bool = False
    """Whether ``body`` is a chat completion request in place of a messages request, because its tokens are recorded."""
    context: str = ""
    """Digest of the system prompt and the tools of a request whose tokens are recorded."""
    sampling: Mapping[str, Any] = _NOTHING
    """The numbers in a request whose tokens are recorded, such as ``temperature``."""
    constrained: bool = False
    """Whether a request whose tokens are recorded changes what may be sampled, e.g. by a JSON schema."""
    by_provider: str = ""
    """What the request asks the provider to run or to fetch (costly_content.provider_content). "" without ``searches_tools``."""


class _Edit(NamedTuple):
    """A change to a body's text: what stands in place of the characters from ``start`` to ``end``."""

    start: int
    end: int
    text: str


@dataclass(frozen=True)
class _Member:
    start: int
    end: int
    value: Any


def parse_request(body: bytes, route: Route, *, searches_tools: bool = False, captures: bool = False) -> ParsedRequest:
    """Parse a request's body. With ``searches_tools``, also search it for tools of the provider. With ``captures``, ask for token
    ids and log-probabilities. Raises InvalidBody, NotConvertible."""
    if not body:
        return ParsedRequest(body, route.model)
    text, members = _members(body)
    values = {name: member.value for name, member in members.items()}
    model = route.model or values.get("model")
    if not isinstance(model, str) or not _MODEL.fullmatch(model):
        raise InvalidBody("the body's field model must be a model's name: at most 200 visible ASCII characters")
    strips = route.api is CHAT and values.get("stream") is True and not _wants_usage(values)
    usage = [_usage_edit(text, members)] if strips else []
    tokens = _token_edits(text, members) if captures and route.api is CHAT else {}
    chat = _converted(values, model) if captures and route.api is MESSAGES else None
    limit, answers = route.api.output_limit(values), route.api.answers(values)
    return ParsedRequest(
        body=_edited(body, text, [*usage, *tokens.values()]) if chat is None else json.dumps(chat).encode(),
        model=model,
        original=_edited(body, text, list(tokens.values())) if strips else None,
        strips_usage=strips,
        output_tokens=None if limit is None else limit * answers,
        answers=answers,
        opaque=is_opaque(values),
        caches=asks_for_caching(values),
        tier=asks_for_tier(values),
        others=_others(values, model),
        added=frozenset(tokens if chat is None else FIELDS),
        converted=chat is not None,
        context=_context(chat or values) if captures else "",
        sampling={name: value for name, value in values.items() if type(value) in (int, float)} if captures else _NOTHING,
        constrained=captures and _is_constrained(chat or values),
        by_provider=provider_content(values, model) if searches_tools else "",
    )


def _others(values: Mapping[str, Any], model: str) -> tuple[str, ...]:
    names = list(dict.fromkeys(other[:_NAME] for other in other_models(values) if other != model))
    rest = [f"{len(names)} models"] if len(names) > _MAX_OTHERS else []
    return (*names[:_MAX_OTHERS], *rest)


def _wants_usage(values: Mapping[str, Any]) -> bool:
    options = values.get("stream_options")
    return isinstance(options, Mapping) and options.get("include_usage") is True


def _converted(values: Mapping[str, Any], model: str) -> dict[str, Any]:
    """Return the chat completion request for a messages request, which asks for tokens. Raises InvalidBody, NotConvertible."""
    try:
        return {**to_chat(values), **dict.fromkeys(FIELDS, True)}
    except NotConvertible as error:
        if error.malformed:
            raise InvalidBody(str(error)) from error
        error.model = model
        raise


def _usage_edit(text: str, members: Mapping[str, _Member]) -> _Edit:
    """Return the change to a body's text that sets stream_options.include_usage."""
    member = members.get("stream_options")
    if member is None:
        return _insertion(text, "stream_options", _USAGE_WANTED)
    options = member.value if isinstance(member.value, Mapping) else _NOTHING
    return _Edit(member.start, member.end, json.dumps({**options, "include_usage": True}))


def _token_edits(text: str, members: Mapping[str, _Member]) -> dict[str, _Edit]:
    """Return the changes to a body's text that ask for tokens, by the field, without those that the agent asks for itself."""
    edits = {}
    for name in FIELDS:
        member = members.get(name)
        if member is None:
            edits[name] = _insertion(text, name, "true")
        elif not member.value:
            edits[name] = _Edit(member.start, member.end, "true")
    return edits


def _insertion(text: str, name: str, value: str) -> _Edit:
    start = text.index("{") + 1
    return _Edit(start, start, f'"{name}":{value},')


def _edited(body: bytes, text: str, edits: Sequence[_Edit]) -> bytes:
    """Return the body with these changes to its text. All other text stays as the agent wrote it."""
    for edit in sorted(edits, key=lambda edit: edit.start, reverse=True):
        text = f"{text[: edit.start]}{edit.text}{text[edit.end :]}"
    return text.encode() if edits else body


def _context(values: Mapping[str, Any]) -> str:
    messages = values.get("messages")
    first = messages[0] if isinstance(messages, list) and messages and isinstance(messages[0], Mapping) else _NOTHING
    leading = first if first.get("role") in ("system", "developer") else None
    text = json.dumps([leading, values.get("tools")], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _is_constrained(values: Mapping[str, Any]) -> bool:
    """Return whether a chat completion request changes what the server may sample, or from which weights."""
    form, choice = values.get("response_format"), values.get("tool_choice")
    forms = isinstance(form, Mapping) and form.get("type") != "text"
    return forms or choice not in (None, "auto", "none") or any(values.get(name) for name in _CONSTRAINTS)


def _members(body: bytes) -> tuple[str, dict[str, _Member]]:
    """Return the body's text and the members of its JSON object.

    Raises an error if names of members are equal or differ only in case. Parsers disagree which member counts, so a token that
    allows one model could be used for another.
    """
    if has_too_many_parts(body):
        raise InvalidBody(f"the body has more than {MAX_PARTS:,} values")
    try:
        text = body.decode()
        return text, _scanned(text)
    except IndexError as error:
        raise InvalidBody("the body is not a JSON object: it ends too early") from error
    except (ValueError, RecursionError) as error:
        raise InvalidBody(f"the body is not a JSON object in UTF-8: {error}") from error


def _scanned(text: str) -> dict[str, _Member]:
    members: dict[str, _Member] = {}
    at = past(text, space(text, 0), "{")
    if text[at] == "}":
        _end(text, at + 1)
        return members
    names: set[str] = set()
    while True:
        name, at = scanstring(text, past(text, at, '"'), True)
        start = past(text, space(text, at), ":")
        value, end = _DECODER.raw_decode(text, start)
        if name.casefold() in names:
            raise InvalidBody(f"the body has the field {name[:64]!r} twice")
        if name.strip().startswith(CONFIGURATION_MESSAGES):
            raise InvalidBody(f"the body has the field {name[:64]!r}, which no API has")
        if len(names) == _MAX_FIELDS:
            raise InvalidBody(f"the body has more than {_MAX_FIELDS} fields")
        names.add(name.casefold())
        members[name] = _Member(start, end, value)
        at = space(text, end)
        if text[at] == "}":
            _end(text, at + 1)
            return members
        at = past(text, at, ",")


def _end(text: str, at: int) -> None:
    if space(text, at) != len(text):
        raise ValueError(f"unexpected text at character {at}")
