"""Finds what a request asks the provider itself to do or to fetch: its own tools, such as a web search, and files by URL.

A step's network does not limit the provider. What is not known to run at the agent counts as a tool of the provider.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from multistep.gateway.model_api.costly_content import other_models, plain

_FIELDS: Final = frozenset(
    ("mcpservers", "websearchoptions", "container", "prompt", "preset", "plugins", "searchparameters", "enablesearch", "websearch")
)
"""Top-level fields of OpenAI, Anthropic, OpenRouter, xAI and DashScope that have tools of the provider, or stored prompts and
settings, which may have tools. All names here are in lower case without underscores."""
_MODELS: Final = re.compile(r":online\b|@preset/|search-preview|search-api|deep-research|(?:^|/)(?:sonar|compound)", re.IGNORECASE)
"""Models that search by themselves: of OpenRouter, OpenAI, Perplexity and Groq; and stored settings in a model's place."""
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
"""Fields whose content no provider acts on: arguments of calls, and schemas."""


def provider_content(document: Mapping[str, Any], model: str) -> str:
    """Return what a request asks the provider to do or to fetch, as words for a message; "" for nothing. model: the requested
    model."""
    if (searching := next(filter(_MODELS.search, (model, *other_models(document))), None)) is not None:
        return f"the model {searching[:100]!r}, which may search the web"
    for name, value in document.items():
        if plain(name) in _FIELDS and value not in (None, False, "", []):  # an empty object asks for a web search
            return f"the field {name!r}"
        if plain(name) == "tools" and value and not isinstance(value, list):
            return "tools that are no list"
    return next(_found(document), "")


def _found(document: Any) -> Iterator[str]:
    todo = [document]
    while todo:
        here = todo.pop()
        if isinstance(here, list):
            todo.extend(here)
        if not isinstance(here, Mapping):
            continue
        for name, value in here.items():
            field = plain(name)
            if field in _DATA or (field == "input" and here.get("type") == "tool_use"):
                continue
            if field == "tools" and isinstance(value, list):
                yield from (f"the provider's tool {_name(each)}" for each in value if not _runs_at_the_agent(each))
            if (field in _URLS and _is_remote(value)) or (field == "source" and _is_source_by_url(value)):
                yield f"a URL in the field {name!r}, which the provider fetches"
            todo.append(value)


def _runs_at_the_agent(tool: Any) -> bool:
    if not isinstance(tool, Mapping):
        return False
    if {plain(name) for name in tool} <= _GEMINI:
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
