"""Prices of tokens in US dollars, from the installed genai-prices package, which is never updated at run time."""

from __future__ import annotations

import functools
from typing import Final

import genai_prices
from genai_prices.types import PriceCalculation

from multistep.gateway.model_api.answer_parsers import Usage
from multistep.providers import ProviderName

TABLE: Final = f"genai-prices {genai_prices.__version__}"
_PROVIDERS: Final[dict[ProviderName, str]] = {"openai": "openai", "anthropic": "anthropic", "gemini": "google"}


def cost_usd(provider: ProviderName, model: str, usage: Usage) -> float | None:
    """Return the price of this usage; None if genai-prices does not list the model."""
    if not has_price(provider, model):
        return None
    return _cost(provider, model, usage)


@functools.lru_cache(maxsize=1024)
def has_price(provider: ProviderName, model: str) -> bool:
    """Return whether genai-prices lists this model."""
    try:
        _cost(provider, model, Usage(input=1, output=1))
    except LookupError:
        return False
    return True


@functools.lru_cache(maxsize=1024)
def context_window(provider: ProviderName, model: str) -> int | None:
    """Return the model's context window in tokens; None if genai-prices does not list the model or its context window."""
    try:
        return _calculated(provider, model, genai_prices.Usage(input_tokens=1)).model.context_window
    except LookupError:
        return None


def _cost(provider: ProviderName, model: str, usage: Usage) -> float:
    cached = min(usage.cached, usage.input)  # genai-prices rejects cached > input, which a provider may report
    written = min(usage.written, usage.input - cached)
    counted = genai_prices.Usage(
        input_tokens=usage.input,
        cache_read_tokens=cached,
        cache_write_tokens=written,
        cache_write_1h_tokens=min(usage.written_1h, written) or None,
        output_tokens=usage.output,
    )
    return float(_calculated(provider, model, counted).total_price)


def _calculated(provider: ProviderName, model: str, usage: genai_prices.Usage) -> PriceCalculation:
    return genai_prices.calc_price(usage, model, provider_id=_PROVIDERS[provider])
