"""The model providers whose APIs the gateway proxies, and the environment variables from which agents read key and URL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal
from urllib.parse import urlsplit

BASE_URL: Final = r"^https?://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?(/[!\"$->@-~]*)?$"
"""Pattern of a base URL: without user, query and fragment."""

ProviderName = Literal["anthropic", "openai", "gemini"]


@dataclass(frozen=True)
class Provider:
    """A model provider. base_url: of its own API; key_variables, url_variables: variables for API key and base URL; path: base path
    at the gateway."""

    name: ProviderName
    base_url: str
    key_variables: tuple[str, ...]
    url_variables: tuple[str, ...]
    path: str

    @property
    def host(self) -> str:
        """Return the host name of its own API."""
        return urlsplit(self.base_url).hostname or ""


PROVIDERS: Final = (
    Provider(
        "anthropic",
        "https://api.anthropic.com",
        ("ANTHROPIC_API_KEY",),
        ("ANTHROPIC_BASE_URL", "ANTHROPIC_API_BASE"),
        "/anthropic",
    ),
    Provider("openai", "https://api.openai.com/v1", ("OPENAI_API_KEY",), ("OPENAI_BASE_URL", "OPENAI_API_BASE"), "/openai/v1"),
    Provider(
        "gemini",
        "https://generativelanguage.googleapis.com",
        ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
        ("GOOGLE_GEMINI_BASE_URL", "GEMINI_API_BASE"),
        "/gemini",
    ),
)

_NAMES: Final[Mapping[str, str]] = {"google": "gemini"}  # other names of providers, as first part of a model's name
BY_KEY_VARIABLE: Final[Mapping[str, Provider]] = {name: each for each in PROVIDERS for name in each.key_variables}
"""Provider by the name of the variable with its key."""


def provider_of(model: str | None) -> Provider | None:
    """Return the provider of a model, which is the first part of its name; None if it is none of PROVIDERS."""
    name = (model or "").partition("/")[0]
    return next((each for each in PROVIDERS if each.name == _NAMES.get(name, name)), None)


def url_variables(model: str | None) -> tuple[str, ...]:
    """Return the variables for the URL of a model's provider; none for a model without a provider."""
    if (known := provider_of(model)) is not None:
        return known.url_variables
    name, slash, _ = (model or "").partition("/")
    prefix = name.upper().replace("-", "_")  # as Harbor 0.25 names the variables of most other providers
    return (f"{prefix}_BASE_URL", f"{prefix}_API_BASE") if slash else ()
