"""Searches a request's JSON for content that costs more than its text: files, references, tools of the provider, tiers, caching."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

_REFERENCES: Final = (
    "previous_response_id",
    "conversation",
    "prompt",
    "container",
    "cachedContent",
    "cached_content",
    "mcp_servers",
    "web_search_options",
    "context_management",
)
"""Top-level fields of a request that refer to stored content or to tools of the provider."""
_FILE_FIELDS: Final = frozenset(
    ("image_url", "file_id", "file_url", "file_data", "fileData", "inlineData", "inline_data", "input_audio")
)
"""Fields that contain or refer to a file, at any depth."""
_FILE_TYPES: Final = frozenset(
    ("image", "document", "file", "input_image", "input_file", "image_url", "container_upload", "input_audio", "item_reference")
)
_TIERS: Final = ("service_tier", "serviceTier", "speed", "inference_geo")
_USUAL_TIERS: Final = (None, "auto", "default", "standard", "standard_only", "flex", "global")
_TEXT_TOOLS: Final = (None, "function", "custom")
_TEXT_TOOL_FIELDS: Final = frozenset(("functionDeclarations", "function_declarations"))


def is_opaque(document: Mapping[str, Any]) -> bool:
    """Return whether a request may have more tokens of input than bytes: it has files, references, or tools of the provider."""
    if any(document.get(name) for name in _REFERENCES):
        return True
    if any(name in _FILE_FIELDS or (name == "type" and value in _FILE_TYPES) for name, value in _texts(document)):
        return True
    tools = document.get("tools") or []
    return not isinstance(tools, list) or not all(map(_is_text_tool, tools))


def asks_for_tier(document: Mapping[str, Any]) -> bool:
    """Return whether a request names a service tier, speed or region that may cost more than the usual one, e.g. priority."""
    return any(document.get(name) not in _USUAL_TIERS for name in _TIERS)


def asks_for_caching(document: Mapping[str, Any]) -> bool:
    """Return whether a request asks Anthropic to cache parts of its input."""
    return any(name == "cache_control" for name, _ in _texts(document))


def other_models(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield the models that may answer a request in the place of its own: of OpenRouter's ``models``, and of LiteLLM's
    ``fallbacks``, ``context_window_fallbacks``, ``context_window_fallback_dict`` and so on."""
    todo = [value for name, value in document.items() if plain(name) == "models" or "fallback" in plain(name)]
    while todo:
        here = todo.pop()
        if isinstance(here, str):
            yield here
        elif isinstance(here, (list, Mapping)):  # some lists have objects with the models' names
            todo.extend(here.values() if isinstance(here, Mapping) else here)


def plain(name: str) -> str:
    """Return a field's name in lower case without underscores, as servers that accept several spellings read it."""
    return name.strip().casefold().replace("_", "")


def _is_text_tool(tool: Any) -> bool:
    if not isinstance(tool, Mapping):
        return False
    if tool.keys() <= _TEXT_TOOL_FIELDS:
        return True
    return ("name" in tool or "function" in tool) and tool.get("type") in _TEXT_TOOLS


def _texts(value: Any) -> Iterator[tuple[str, str]]:
    """Yield the name and value of each member of all objects in a JSON document; the value is "" if it is not a string."""
    todo = [value]
    while todo:
        here = todo.pop()
        if isinstance(here, Mapping):
            yield from ((name, value if isinstance(value, str) else "") for name, value in here.items())
            todo.extend(here.values())
        elif isinstance(here, list):
            todo.extend(here)
