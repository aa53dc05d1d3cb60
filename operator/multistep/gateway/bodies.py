"""Parses request bodies: model, token estimates. The gateway changes a body only to request the usage of a chat stream."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from json.decoder import scanstring  # type: ignore[attr-defined]  # not in typeshed
from types import MappingProxyType
from typing import Any, Final

from multistep.gateway.dialects import CHAT
from multistep.gateway.routes import Route

ASSUMED_OUTPUT_TOKENS: Final = 8192
"""Output tokens that are reserved for a request without a maximum."""
_BYTES_PER_TOKEN: Final = 2  # a cautious estimate: English text has 4, code 3, JSON with many escapes fewer
_FILE: Final = re.compile(rb"[A-Za-z0-9+/_=-]{1024,}")  # base64 of an image or document: its tokens do not depend on its size
_TOKENS_PER_FILE: Final = 4096
_SPACE: Final = re.compile(r"[ \t\n\r]*")
_DECODER: Final = json.JSONDecoder()
_USAGE_WANTED: Final = '{"include_usage":true}'
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


class InvalidBody(Exception):
    """The body is not a JSON object that every parser reads alike. The text is shown to the agent."""


@dataclass(frozen=True)
class Asked:
    """The parsed body of a request.

    body: the bytes to send to the provider; strips_usage: whether to hide the stream's usage event, which only the gateway
    requested; input_tokens, output_tokens: upper estimates, which the budgets reserve.
    """

    body: bytes
    model: str
    strips_usage: bool = False
    input_tokens: int = 0
    output_tokens: int = ASSUMED_OUTPUT_TOKENS


@dataclass(frozen=True)
class _Member:
    start: int
    end: int
    value: Any


def read_body(body: bytes, route: Route) -> Asked:
    """Parse a request's body. Raises InvalidBody."""
    if not body:
        return Asked(body, route.model)
    text, members = _members(body)
    values = {name: member.value for name, member in members.items()}
    model = route.model or values.get("model")
    if not isinstance(model, str) or not model:
        raise InvalidBody("the body's field model is missing or not a string")
    strips = route.dialect is CHAT and values.get("stream") is True and not _wants_usage(values)
    limit = route.dialect.output_limit(values)
    return Asked(
        body=_asking_for_usage(text, members).encode() if strips else body,
        model=model,
        strips_usage=strips,
        input_tokens=_most_input(body),
        output_tokens=limit if isinstance(limit, int) and limit > 0 else ASSUMED_OUTPUT_TOKENS,
    )


def _most_input(body: bytes) -> int:
    files = [len(each) for each in _FILE.findall(body)]
    return (len(body) - sum(files)) // _BYTES_PER_TOKEN + len(files) * _TOKENS_PER_FILE


def _wants_usage(values: Mapping[str, Any]) -> bool:
    options = values.get("stream_options")
    return isinstance(options, Mapping) and options.get("include_usage") is True


def _asking_for_usage(text: str, members: Mapping[str, _Member]) -> str:
    """Insert ``include_usage`` and leave all else as it is, including the spelling of numbers and the order of members."""
    found = members.get("stream_options")
    if found is None:
        start = text.index("{") + 1
        return f'{text[:start]}"stream_options":{_USAGE_WANTED},{text[start:]}'
    options = found.value if isinstance(found.value, Mapping) else _NOTHING
    return f"{text[: found.start]}{json.dumps({**options, 'include_usage': True})}{text[found.end :]}"


def _members(body: bytes) -> tuple[str, dict[str, _Member]]:
    """Return the body's text and the members of its JSON object.

    Two members whose names differ at most in case are refused: parsers disagree which one counts, so a token that allows one
    model could be used for another.
    """
    try:
        text = body.decode()
        return text, _scanned(text)
    except IndexError as error:
        raise InvalidBody("the body is not a JSON object: it ends too early") from error
    except (ValueError, RecursionError) as error:
        raise InvalidBody(f"the body is not a JSON object in UTF-8: {error}") from error


def _scanned(text: str) -> dict[str, _Member]:
    found: dict[str, _Member] = {}
    at = _past(text, _space(text, 0), "{")
    if text[at] == "}":
        _end(text, at + 1)
        return found
    names: set[str] = set()
    while True:
        name, at = scanstring(text, _past(text, at, '"'), True)
        start = _past(text, _space(text, at), ":")
        value, end = _DECODER.raw_decode(text, start)
        if name.casefold() in names:
            raise InvalidBody(f"the body has the field {name[:64]!r} twice")
        names.add(name.casefold())
        found[name] = _Member(start, end, value)
        at = _space(text, end)
        if text[at] == "}":
            _end(text, at + 1)
            return found
        at = _past(text, at, ",")


def _space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _past(text: str, at: int, wanted: str) -> int:
    """Return the position after this character and, except in a string, after the white space that follows it."""
    if text[at] != wanted:
        raise ValueError(f"expected {wanted!r} at character {at}")
    return at + 1 if wanted == '"' else _space(text, at + 1)


def _end(text: str, at: int) -> None:
    if _space(text, at) != len(text):
        raise ValueError(f"unexpected text at character {at}")
