"""Prices of models: what a usage or an answer costs, and whether a model has a price. The prices are those of genai-prices."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Final

import genai_prices
from genai_prices.types import PriceCalculation

from multistep.gateway.model_api.answer_parsers import TokenUsage
from multistep.providers import ProviderName

TABLE: Final = f"genai-prices {genai_prices.__version__}"
_PROVIDERS: Final[dict[ProviderName, str]] = {"openai": "openai", "anthropic": "anthropic", "gemini": "google"}


def cost_usd(provider: ProviderName, model: str, usage: TokenUsage) -> float | None:
    """Return the price of this usage, or None if genai-prices does not list the model."""
    if not has_price(provider, model):
        return None
    return _cost(provider, model, usage)


@functools.lru_cache(maxsize=1024)
def has_price(provider: ProviderName, model: str) -> bool:
    """Return whether genai-prices lists this model."""
    try:
        _cost(provider, model, TokenUsage(input=1, output=1))
    except LookupError:
        return False
    return True


@functools.lru_cache(maxsize=1024)
def context_window(provider: ProviderName, model: str) -> int | None:
    """Return the model's context window in tokens, or None if genai-prices does not list it."""
    try:
        return _calculated(provider, model, genai_prices.Usage(input_tokens=1)).model.context_window
    except LookupError:
        return None


def answer_cost_usd(provider: ProviderName, models: Sequence[str], answered_by: str, usage: TokenUsage) -> float | None:
    """Return the price of an answer. If the price of ``answered_by``, the model that the answer names, is unknown, this is the
    price of the dearest model that may have answered. ``models`` has the requested model first. ``answered_by`` is "" for no
    name."""
    if len(models) > 1:
        price = cost_usd(provider, answered_by, usage)
        if price is not None:
            return price
    prices = [cost_usd(provider, model, usage) for model in models]
    known = [price for price in prices if price is not None]
    return max(known) if len(known) == len(prices) else prices[0]


def _cost(provider: ProviderName, model: str, usage: TokenUsage) -> float:
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
