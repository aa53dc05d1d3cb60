"""The model providers whose APIs the gateway proxies, and the environment variables from which agents read key and URL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

ProviderName = Literal["anthropic", "openai", "gemini"]


@dataclass(frozen=True)
class Provider:
    """A model provider. key_variables, url_variables: variables for API key and base URL; path: base path at the gateway."""

    name: ProviderName
    key_variables: tuple[str, ...]
    url_variables: tuple[str, ...]
    path: str


PROVIDERS: Final = (
    Provider("anthropic", ("ANTHROPIC_API_KEY",), ("ANTHROPIC_BASE_URL", "ANTHROPIC_API_BASE"), "/anthropic"),
    Provider("openai", ("OPENAI_API_KEY",), ("OPENAI_BASE_URL", "OPENAI_API_BASE"), "/openai/v1"),
    Provider("gemini", ("GEMINI_API_KEY", "GOOGLE_API_KEY"), ("GOOGLE_GEMINI_BASE_URL", "GEMINI_API_BASE"), "/gemini"),
)

_NAMES: Final[Mapping[str, str]] = {"google": "gemini"}  # other names of providers, as first part of a model's name
BY_KEY_VARIABLE: Final[Mapping[str, Provider]] = {name: each for each in PROVIDERS for name in each.key_variables}
"""Provider by the name of the variable with its key."""


def url_variables(model: str | None) -> tuple[str, ...]:
    """Return the variables for the URL of a model's provider, which is the first part of the model's name; none without one."""
    name, slash, _ = (model or "").partition("/")
    known = [each.url_variables for each in PROVIDERS if each.name == _NAMES.get(name, name)]
    prefix = name.upper().replace("-", "_")  # as Harbor 0.25 names the variables of most other providers
    return known[0] if known else (f"{prefix}_BASE_URL", f"{prefix}_API_BASE") if slash else ()
