"""The model providers whose APIs the gateway proxies, with the environment variables from which agents read key and URL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal
from urllib.parse import urlsplit

BASE_URL: Final = r"^https?://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?(/[!\"$->@-~]*)?$"
"""Pattern of a base URL, which has no user, query or fragment."""

ProviderName = Literal["anthropic", "openai", "gemini"]


@dataclass(frozen=True)
class Provider:
    """A model provider."""

    name: ProviderName
    base_url: str
    """Base URL of the provider's own API."""
    key_variables: tuple[str, ...]
    """Environment variables for the API key."""
    url_variables: tuple[str, ...]
    """Environment variables for the base URL."""
    path: str
    """Base path at the gateway."""

    @property
    def host(self) -> str:
        """Return the host name of the provider's own API."""
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

_NAMES: Final[Mapping[str, str]] = {"google": "gemini"}  # other names of providers in models' names
BY_KEY_VARIABLE: Final[Mapping[str, Provider]] = {name: each for each in PROVIDERS for name in each.key_variables}
"""The providers, by the name of the variable with the API key."""


_OF_JUDGES: Final[Mapping[ProviderName, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "openai": (("LITELLM_API_KEY", "LITELLM_PROXY_API_KEY"), ("LITELLM_BASE_URL", "LITELLM_API_BASE", "LITELLM_PROXY_API_BASE")),
    "anthropic": ((), ()),
    "gemini": ((), ("GEMINI_BASE_URL",)),
}
"""Further variables for key and URL that programs of verifiers read, by the provider whose API they then call."""


def judge_variables(key_variable: str) -> Mapping[str, bool]:
    """Return the variables with which a verifier calls the provider of a key, and for each whether it has the key: else it has the
    URL."""
    if (provider := BY_KEY_VARIABLE.get(key_variable)) is None:
        return {}
    keys, urls = _OF_JUDGES[provider.name]
    return {
        **dict.fromkeys((*provider.key_variables, *keys), True),
        **dict.fromkeys((*provider.url_variables, *urls), False),
    }


def provider_of(model: str | None) -> Provider | None:
    """Return the provider in the first part of a model's name, None if it is none of PROVIDERS."""
    name = (model or "").partition("/")[0]
    return next((each for each in PROVIDERS if each.name == _NAMES.get(name, name)), None)


def names_of(model: str | None) -> tuple[str, ...]:
    """Return the names under which programs request a model, whose own name may have the provider as a prefix.

    claude-code removes the suffix with which it selects a large context window.
    """
    name = (model or "").removesuffix("[1m]")
    return tuple(dict.fromkeys((name, name.partition("/")[2] or name, name.rpartition("/")[2])))


def is_name_of(model: str | None, requested: str) -> bool:
    """Return whether a request was for the model."""
    return bool(requested) and requested in names_of(model)


def url_variables(model: str | None) -> tuple[str, ...]:
    """Return the variables for the base URL of a model's provider, () for a model without a provider."""
    if (known := provider_of(model)) is not None:
        return known.url_variables
    name, slash, _ = (model or "").partition("/")
    prefix = name.upper().replace("-", "_")  # Harbor 0.26 names the variables of most other providers in this way
    return (f"{prefix}_BASE_URL", f"{prefix}_API_BASE") if slash else ()
