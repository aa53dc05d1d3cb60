"""The paths that the gateway forwards, with and without the API's version. The gateway answers every other path with 404."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from multistep.gateway.model_api.answer_parsers import CHAT, GEMINI, MESSAGES, RESPONSES, ApiFormat
from multistep.providers import PROVIDERS, ProviderName

BASE_PATHS: Final = {provider.name: provider.path for provider in PROVIDERS}
"""Path of the gateway's base URL, by provider."""
BASE_URLS: Final = {provider.name: provider.base_url for provider in PROVIDERS}
"""The providers' default base URLs, to which the gateway appends the rest of a request's path."""

STALLS_PATH: Final = "/multistep/stalls"
"""Path at which the agent host asks how long the provider stalled its step. The gateway answers such a request without the
provider."""

_MODEL: Final = r"(?P<model>[A-Za-z0-9][A-Za-z0-9_.@-]{0,199})"


@dataclass(frozen=True, slots=True)
class Route:
    """The facts about a request that follow from its method and path."""

    provider: ProviderName
    api: ApiFormat
    path: str
    """URL path after the provider's base URL."""
    model: str
    """The model that the path names, or ""."""
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
    """Return the route of a request, or None if the gateway does not forward it. ``path`` is the URL's path, decoded."""
    path = _SLASHES.sub("/", path).removesuffix("/")
    for allowed, provider, pattern, api, counted in _ROUTES:
        if method == allowed and (match := pattern.fullmatch(path)):
            version = (match["version"] if provider == "gemini" else None) or _VERSIONS[provider]
            return Route(provider, api, version + match["path"], match.groupdict().get("model") or "", counted)
    return None


def provider_of(path: str) -> ProviderName | None:
    """Return the provider whose base path is a prefix of this path. The provider determines the format of errors."""
    return next((provider for provider in BASE_PATHS if path.startswith(f"/{provider}/")), None)
