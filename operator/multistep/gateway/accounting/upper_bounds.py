"""Upper bounds of a request's tokens and cost, which budgets reserve before the request is sent.

A token has at least one byte, so a text has at most as many tokens as bytes. If the request has files, references or tools of the
provider, its body does not show all tokens: then the model's context window is the bound.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import astuple, replace
from typing import Final, NamedTuple

import genai_prices
from genai_prices.types import PriceCalculation

from multistep.gateway.accounting.request_ledger import Spent
from multistep.gateway.model_api.answer_parsers import Usage
from multistep.gateway.model_api.request_parsers import Asked
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


_TEMPLATE_TOKENS: Final = 2048  # tokens that providers add to a prompt, e.g. instructions for tools (Anthropic: at most 800)
_LONG_CONTEXT: Final = 1_000_000  # Anthropic: context window with the beta context-1m
_ASSUMED_OUTPUT: Final = 8192  # used if the maximum is unknown; then only requests without a budget are sent


class _Model(NamedTuple):
    """Token limits of a model; None if unknown. window: its context window; output: maximum of output tokens per answer."""

    window: int | None
    output: int | None


_UNKNOWN: Final = _Model(None, None)
_FAMILIES: Final[Mapping[str, _Model]] = {
    "claude-": _Model(None, 128_000),
    "gpt-3.5": _Model(16_385, 4096),
    "gpt-4": _Model(128_000, 8192),
    "gpt-4.1": _Model(1_047_576, 32_768),
    "gpt-4o": _Model(128_000, 16_384),
    "gpt-5": _Model(None, 128_000),
    "gpt-6": _Model(None, 128_000),
    "codex-mini": _Model(200_000, 100_000),
    "o1": _Model(200_000, 100_000),
    "o3": _Model(200_000, 100_000),
    "o4": _Model(200_000, 100_000),
    "gemini-1.5": _Model(2_000_000, 8192),
    "gemini-2.0": _Model(1_048_576, 8192),
    "gemini-2.5": _Model(1_048_576, 65_536),
    "gemini-3": _Model(1_048_576, 65_536),
}
"""Limits by prefix of the model's name; the longest matching prefix applies. None: use the context window that genai-prices
lists."""


class WorstCase(NamedTuple):
    """The upper bound of a request's usage. unknown: why the bound is unknown (``most`` is then assumed), "" if it is known;
    by_content: whether the reason is what else than its own model the request asks for."""

    most: Spent
    unknown: str = ""
    by_content: bool = False


def worst_case(provider: ProviderName, asked: Asked, *, long_context: bool = False) -> WorstCase:
    """Return the upper bound of a request's usage, whichever of the models that it names answers. long_context: whether it asks for
    Anthropic's window of 1 million tokens."""
    first = _worst_case(provider, asked, long_context)
    others = [_worst_case(provider, replace(asked, model=each), long_context) for each in asked.others]
    most = Spent(*map(max, *(astuple(each.most) for each in (first, *others)))) if others else first.most
    if first.unknown:
        return WorstCase(most, first.unknown, by_content=asked.opaque)
    return WorstCase(most, next((each.unknown for each in others if each.unknown), ""), by_content=True)


def _worst_case(provider: ProviderName, asked: Asked, long_context: bool) -> WorstCase:
    limits, listed = _limits(asked.model), context_window(provider, asked.model)
    window = _LONG_CONTEXT if long_context else limits.window or listed
    text = len(asked.body) + _TEMPLATE_TOKENS
    most_input = (window or text) if asked.opaque else min(text, window or text)
    own = limits.output or listed
    asked_output = asked.output_tokens or (own or _ASSUMED_OUTPUT) * asked.answers
    most_output = asked_output if own is None else min(asked_output, own * asked.answers)
    unknown = ""
    if asked.opaque and window is None:
        unknown = "it has files, references or tools of the provider, and the model's context window is unknown"
    elif asked.output_tokens is None and own is None:
        unknown = (
            "it names no maximum of output tokens, and the model's is unknown; give the agent an option for the maximum, or remove "
            "the limits of tokens and cost (spec.agent.limits, the sweep's spec.budget)"
        )
    return WorstCase(Spent(most_input, most_output, _most_cost(provider, asked, most_input, most_output)), unknown)


def _most_cost(provider: ProviderName, asked: Asked, most_input: int, most_output: int) -> float:
    """Return the upper bound of the request's cost. It assumes that the provider reads nothing from its cache and, if the request
    asks for caching, writes all input to the cache."""
    uses = [Usage(input=most_input, output=most_output)]
    # Only Anthropic charges more for cache writes; writes that are cached for an hour cost the most.
    if asked.caches and provider == "anthropic":
        uses.append(Usage(input=most_input, written=most_input, written_1h=most_input, output=most_output))
    return max(cost_usd(provider, asked.model, each) or 0.0 for each in uses)


def _limits(model: str) -> _Model:
    starts = [start for start in _FAMILIES if model.startswith(start)]
    return _FAMILIES[max(starts, key=len)] if starts else _UNKNOWN
