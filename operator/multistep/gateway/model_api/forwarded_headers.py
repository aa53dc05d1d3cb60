"""The headers and query parameters that the gateway forwards. The provider gets its key in place of the agent's token."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from aiohttp import web

from multistep.providers import ProviderName

Headers = list[tuple[str, str]]

_HOP_BY_HOP: Final = {"connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer"}
_OF_ONE_CONNECTION: Final = _HOP_BY_HOP | {"transfer-encoding", "upgrade", "content-length", "host", "expect"}
_CREDENTIALS: Final = {"authorization", "x-api-key", "x-goog-api-key", "api-key"}
# With these headers, an agent could make the provider reject the key, so that its trial is excluded.
_FOR_ACCOUNTS: Final = {"openai-organization", "openai-project", "x-goog-user-project", "x-litellm-api-key"}
_FOR_ANSWERS: Final = {"x-goog-fieldmask", "x-http-method-override"}  # an agent could make an answer look cut off with these
# With a header such as X-Server-Timeout (Gemini), X-LiteLLM-Timeout or CF-AIG-Request-Timeout, an agent could end a request early.
_TIMEOUT: Final = "timeout"
_QUERY: Final = re.compile(r"alt=sse|beta=true|api-version=[\w.-]{1,40}")  # the query parameters that agents need
_ORDER: Final[dict[ProviderName, Sequence[str]]] = {
    "openai": ("authorization", "api-key", "x-api-key"),
    "anthropic": ("x-api-key", "authorization"),
    "gemini": ("x-goog-api-key", "authorization", "x-api-key"),
}


def token_of(request: web.Request, provider: ProviderName) -> str:
    """Return the step token of a request, from the first header that has one, or from Gemini's query parameter ``key``. Return ""
    if there is none."""
    for name in _ORDER[provider]:
        if value := request.headers.get(name, ""):
            return re.sub(r"(?i)^bearer\s+", "", value).strip()
    return request.query.get("key", "") if provider == "gemini" else ""


def upstream_headers(given: Iterable[tuple[str, str]], credential: tuple[str, str]) -> Headers:
    """Return the headers for the provider. They are the provider's key and the agent's headers, without hop-by-hop headers,
    credentials, and headers that choose an account, a timeout or the fields of the answer."""
    left_out = _OF_ONE_CONNECTION | _CREDENTIALS | _FOR_ACCOUNTS | _FOR_ANSWERS | {"accept-encoding"}
    kept = [header for header in _others(given, left_out) if _TIMEOUT not in header[0].lower()]
    return [*kept, ("Accept-Encoding", "identity"), credential]


def answer_headers(given: Iterable[tuple[str, str]], key: str, redacted: str) -> Headers:
    """Return the provider's headers for the agent, without hop-by-hop headers, and with the provider's key redacted."""
    return [(name, value.replace(key, redacted)) for name, value in _others(given, _OF_ONE_CONNECTION)]


def upstream_query(raw: str) -> str:
    """Return the raw query with only the allowed parameters.

    Another parameter could change the answer's format, so that the answer looks cut off.
    """
    return "&".join(part for part in raw.split("&") if _QUERY.fullmatch(part))


def _others(given: Iterable[tuple[str, str]], left_out: set[str]) -> Headers:
    headers = list(given)
    listed = {option.strip().lower() for name, value in headers if name.lower() == "connection" for option in value.split(",")}
    return [(name, value) for name, value in headers if name.lower() not in left_out | listed]
