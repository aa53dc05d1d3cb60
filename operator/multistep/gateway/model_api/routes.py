"""The paths that the gateway forwards, each with and without the API's version; every other path is answered with 404."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from multistep.gateway.model_api.answer_parsers import CHAT, GEMINI, MESSAGES, RESPONSES, ApiFormat
from multistep.providers import PROVIDERS, ProviderName

BASE_PATHS: Final = {provider.name: provider.path for provider in PROVIDERS}
"""Path of the gateway's base URL, by provider."""
BASE_URLS: Final = {provider.name: provider.base_url for provider in PROVIDERS}
"""The providers' default base URLs, to which the gateway appends the rest of a request's path."""

STALLS_PATH: Final = "/multistep/stalls"
"""Path at which the agent host asks how long the provider stalled its step. It is not forwarded."""

_MODEL: Final = r"(?P<model>[A-Za-z0-9][A-Za-z0-9_.@-]{0,199})"


@dataclass(frozen=True, slots=True)
class Route:
    """An allowed request."""

    provider: ProviderName
    api: ApiFormat
    path: str
    """URL path after the provider's base URL."""
    model: str
    """Model in the path, or ""."""
    counted: bool
    """Whether the request uses tokens."""


_TABLE: Final[tuple[tuple[str, ProviderName, str, ApiFormat, bool], ...]] = (
    ("POST", "openai", r"/chat/completions", CHAT, True),
    ("POST", "openai", r"/responses(?:/compact)?", RESPONSES, True),
    ("GET", "openai", rf"/models(?:/{_MODEL})?", CHAT, False),
    ("POST", "anthropic", r"/messages", MESSAGES, True),
    ("POST", "anthropic", r"/messages/count_tokens", MESSAGES, False),
    ("GET", "anthropic", rf"/models(?:/{_MODEL})?", MESSAGES, False),
    ("POST", "gemini", rf"/models/{_MODEL}:(?:generateContent|streamGenerateContent)", GEMINI, True),
    ("POST", "gemini", rf"/models/{_MODEL}:countTokens", GEMINI, False),
    ("GET", "gemini", rf"/models(?:/{_MODEL})?", GEMINI, False),
)
_VERSIONS: Final[Mapping[ProviderName, str]] = {"openai": "", "anthropic": "/v1", "gemini": "/v1beta"}
"""Version in the path after the provider's base URL, for requests whose path has none."""
_VERSION: Final = r"(?:/v1(?:alpha|beta)?)"
_ROUTES: Final = tuple(
    (method, provider, re.compile(rf"/{provider}{_VERSION}??(?P<version>{_VERSION})?(?P<path>{path})"), api, counted)
    for method, provider, path, api, counted in _TABLE
)
_SLASHES: Final = re.compile(r"//+")


def find_route(method: str, path: str) -> Route | None:
    """Return the route of a request; None if it is not allowed. path: the URL's path, decoded."""
    path = _SLASHES.sub("/", path).removesuffix("/")
    for allowed, provider, pattern, api, counted in _ROUTES:
        if method == allowed and (match := pattern.fullmatch(path)):
            version = (match["version"] if provider == "gemini" else None) or _VERSIONS[provider]
            return Route(provider, api, version + match["path"], match.groupdict().get("model") or "", counted)
    return None


def provider_of(path: str) -> ProviderName | None:
    """Return the provider whose base path is a prefix of this path. The provider determines the format of errors."""
    return next((provider for provider in BASE_PATHS if path.startswith(f"/{provider}/")), None)


Headers = list[tuple[str, str]]

_HOP_BY_HOP: Final = {"connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer"}
_OF_ONE_CONNECTION: Final = _HOP_BY_HOP | {"transfer-encoding", "upgrade", "content-length", "host", "expect"}
_CREDENTIALS: Final = {"authorization", "x-api-key", "x-goog-api-key", "api-key"}
# With these headers, an agent could make the provider reject the key, and so have its trial excluded.
_FOR_ACCOUNTS: Final = {"openai-organization", "openai-project", "x-goog-user-project", "x-litellm-api-key"}
_FOR_ANSWERS: Final = {"x-goog-fieldmask", "x-http-method-override"}  # an agent could make an answer look cut off with these
# With a header such as X-Server-Timeout (Gemini), X-LiteLLM-Timeout or CF-AIG-Request-Timeout, an agent could end a request early.
_TIMEOUT: Final = "timeout"
_QUERY: Final = re.compile(r"alt=sse|beta=true|api-version=[\w.-]{1,40}")  # the query parameters that agents use
_ORDER: Final[dict[ProviderName, Sequence[str]]] = {
    "openai": ("authorization", "api-key", "x-api-key"),
    "anthropic": ("x-api-key", "authorization"),
    "gemini": ("x-goog-api-key", "authorization", "x-api-key"),
}


def token_of(request: web.Request, provider: ProviderName) -> str:
    """Return the step token of a request, from the first header that has one or from Gemini's query parameter ``key``; "" if there
    is none."""
    for name in _ORDER[provider]:
        if value := request.headers.get(name, ""):
            return re.sub(r"(?i)^bearer\s+", "", value).strip()
    return request.query.get("key", "") if provider == "gemini" else ""


def upstream_headers(given: Iterable[tuple[str, str]], credential: tuple[str, str]) -> Headers:
    """Return the headers for the provider: the provider's key, and the agent's headers except hop-by-hop headers, credentials and
    headers that choose an account, a timeout or the fields of the answer."""
    left_out = _OF_ONE_CONNECTION | _CREDENTIALS | _FOR_ACCOUNTS | _FOR_ANSWERS | {"accept-encoding"}
    kept = [header for header in _others(given, left_out) if _TIMEOUT not in header[0].lower()]
    return [*kept, ("Accept-Encoding", "identity"), credential]


def answer_headers(given: Iterable[tuple[str, str]], key: str, redacted: str) -> Headers:
    """Return the headers for the agent: the provider's headers except hop-by-hop headers, with the provider's key redacted."""
    return [(name, value.replace(key, redacted)) for name, value in _others(given, _OF_ONE_CONNECTION)]


def upstream_query(raw: str) -> str:
    """Return the raw query with only the allowed parameters.

    Other parameters could change the format of the answer, so that the answer looks cut off.
    """
    return "&".join(part for part in raw.split("&") if _QUERY.fullmatch(part))


def _others(given: Iterable[tuple[str, str]], left_out: set[str]) -> Headers:
    headers = list(given)
    listed = {option.strip().lower() for name, value in headers if name.lower() == "connection" for option in value.split(",")}
    return [(name, value) for name, value in headers if name.lower() not in left_out | listed]
