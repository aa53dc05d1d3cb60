"""Searches a request's JSON for content that costs more than its text, such as files, references, tools that the provider runs,
service tiers and caching."""

from __future__ import annotations

import re
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
    """Return whether a request may have more tokens of input than bytes, because of files, references or tools of the provider."""
    if any(document.get(name) for name in _REFERENCES):
        return True
    if any(_is_file(part) for part in _objects(document)):
        return True
    tools = document.get("tools") or []
    return not isinstance(tools, list) or not all(map(_is_text_tool, tools))


def asks_for_tier(document: Mapping[str, Any]) -> bool:
    """Return whether a request names a service tier, speed or region that may cost more than the usual one, e.g. priority."""
    return any(document.get(name) not in _USUAL_TIERS for name in _TIERS)


def asks_for_caching(document: Mapping[str, Any]) -> bool:
    """Return whether a request asks Anthropic to cache parts of its input."""
    return any("cache_control" in part for part in _objects(document))


def other_models(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield the models that may answer a request in place of the requested model. The request names them in OpenRouter's field
    ``models``, or in LiteLLM's ``fallbacks``, ``context_window_fallbacks``, ``context_window_fallback_dict`` and so on. A list may
    contain objects with settings, in which only the field ``model`` and further lists have names of models."""
    named = [value for name, value in document.items() if plain_name(name) == "models" or "fallback" in plain_name(name)]
    todo = [each for value in named for each in (value.values() if isinstance(value, Mapping) else [value])]
    while todo:
        here = todo.pop()
        if isinstance(here, str):
            yield here
        elif isinstance(here, list):
            todo.extend(here)
        elif isinstance(here, Mapping):
            todo.extend(value for name, value in here.items() if isinstance(value, list) or plain_name(name) == "model")


def plain_name(name: str) -> str:
    """Return a field's name in lower case without underscores, because some servers accept several spellings."""
    return name.strip().casefold().replace("_", "")


def _is_text_tool(tool: Any) -> bool:
    if not isinstance(tool, Mapping):
        return False
    if tool.keys() <= _TEXT_TOOL_FIELDS:
        return True
    return ("name" in tool or "function" in tool) and tool.get("type") in _TEXT_TOOLS


def _is_file(part: Mapping[str, Any]) -> bool:
    kind = part.get("type")
    return not _FILE_FIELDS.isdisjoint(part) or (isinstance(kind, str) and kind in _FILE_TYPES)


def _objects(document: Any) -> Iterator[Mapping[str, Any]]:
    """Yield all objects in a JSON document."""
    todo = [document]
    while todo:
        here = todo.pop()
        if isinstance(here, Mapping):
            yield here
            todo.extend(here.values())
        elif isinstance(here, list):
            todo.extend(here)


_FIELDS: Final = frozenset(
    ("mcpservers", "websearchoptions", "container", "prompt", "preset", "plugins", "searchparameters", "enablesearch", "websearch")
)
"""Top-level fields (of OpenAI, Anthropic, OpenRouter, xAI and DashScope) that contain tools of the provider, or refer to stored
prompts and settings, which may contain such tools. The names in this module are as ``plain_name`` returns them."""
_MODELS: Final = re.compile(r":online\b|@preset/|search-preview|search-api|deep-research|(?:^|/)(?:sonar|compound)", re.IGNORECASE)
"""Names of models of OpenRouter, OpenAI, Perplexity and Groq that search the web without a tool, and of stored settings."""
_AT_THE_AGENT: Final = re.compile(
    r"function|custom|namespace|local_shell|shell|apply_patch|computer|computer_use_preview|tool_search"
    r"|(?:bash|text_editor|computer|memory|tool_search_tool)_\w+"
)
"""Types of tools that the agent runs, or that only search among the request's tools."""
_GEMINI: Final = frozenset(("functiondeclarations", "computeruse"))
_URLS: Final = frozenset(("imageurl", "fileurl", "fileuri", "videourl", "audiourl", "documenturl"))
_DATA: Final = frozenset(
    ("functioncall", "inputschema", "parameters", "parametersjsonschema", "jsonschema", "schema", "responseschema")
)
"""Fields with arguments of calls, or with schemas. No provider acts on their content."""


def provider_content(document: Mapping[str, Any], model: str) -> str:
    """Return a description of what a request to ``model`` asks the provider to run or to fetch, for a message. Return "" if it asks
    for nothing."""
    if (searching := next(filter(_MODELS.search, (model, *other_models(document))), None)) is not None:
        return f"the model {searching[:100]!r}, which may search the web"
    for name, value in document.items():
        if plain_name(name) in _FIELDS and value not in (None, False, "", []):  # an empty object asks for a web search
            return f"the field {name!r}"
        if plain_name(name) == "tools" and value and not isinstance(value, list):
            return "tools that are no list"
    return next(_provider_content(document), "")


def _provider_content(document: Any) -> Iterator[str]:
    todo = [document]
    while todo:
        here = todo.pop()
        if isinstance(here, list):
            todo.extend(here)
        if not isinstance(here, Mapping):
            continue
        for name, value in here.items():
            field = plain_name(name)
            if field in _DATA or (field == "input" and here.get("type") == "tool_use"):
                continue
            if field == "tools" and isinstance(value, list):
                yield from (f"the provider's tool {_name(tool)}" for tool in value if not _runs_at_the_agent(tool))
            if (field in _URLS and _is_remote(value)) or (field == "source" and _is_source_by_url(value)):
                yield f"a URL in the field {name!r}, which the provider fetches"
            todo.append(value)


def _runs_at_the_agent(tool: Any) -> bool:
    if not isinstance(tool, Mapping):
        return False
    if {plain_name(name) for name in tool} <= _GEMINI:
        return True
    kind, place = tool.get("type"), tool.get("environment")
    if kind is None:
        return "name" in tool or "function" in tool
    hosted = isinstance(place, Mapping) and place.get("type") != "local"
    return isinstance(kind, str) and _AT_THE_AGENT.fullmatch(kind) is not None and not hosted


def _name(tool: Any) -> str:
    if not isinstance(tool, Mapping):
        return "of unknown form"
    return repr(str(tool.get("type") or next(iter(tool), ""))[:100])


def _is_remote(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(_is_remote(value.get(name)) for name in ("url", "uri"))
    return isinstance(value, str) and bool(value.strip()) and not value.strip().casefold().startswith("data:")


def _is_source_by_url(value: Any) -> bool:
    return isinstance(value, Mapping) and value.get("type") == "url"
