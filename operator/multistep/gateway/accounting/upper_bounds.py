"""Upper bounds of a request's tokens and cost, which budgets reserve before the request is sent.

A token has at least one byte, so a text has at most as many tokens as bytes. If the request has files, references or tools of the
provider, its body does not show all tokens. The bound is then the model's context window.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from typing import Final, NamedTuple

import genai_prices
from genai_prices.types import PriceCalculation

from multistep.gateway.accounting.ledger_rows import Spent
from multistep.gateway.model_api.answer_parsers import TokenUsage
from multistep.gateway.model_api.request_parsers import ParsedRequest
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


_TEMPLATE_TOKENS: Final = 2048  # tokens that providers add to a prompt, e.g. instructions for tools (Anthropic: at most 800)
_LONG_CONTEXT: Final = 1_000_000  # Anthropic's context window with the beta context-1m
_ASSUMED_OUTPUT: Final = 8192  # assumed if the maximum is unknown, for requests to which no budget applies


class _Model(NamedTuple):
    """Limits of a model, in tokens. A limit that is unknown is None."""

    window: int | None
    """Context window."""
    output: int | None
    """Maximum number of output tokens per answer."""


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
"""Limits by prefix of the model's name. The longest matching prefix applies. For None, the context window that genai-prices lists
applies."""


class UpperBound(NamedTuple):
    """The upper bound of a request's usage."""

    most: Spent
    """The upper bound of the request's usage, no matter which of its models answers."""
    of_own_model: Spent
    """The upper bound of the request's usage if the requested model answers."""
    unknown: str = ""
    """Why the bound is only assumed, or "" if it is known."""
    by_content: bool = False
    """Whether the bound is unknown because of the request's content, such as a file, a reference, a tool or another model that it
    names."""


def upper_bound(provider: ProviderName, parsed: ParsedRequest, *, long_context: bool = False) -> UpperBound:
    """Return the upper bound of a request's usage. ``long_context`` tells whether the request asks for Anthropic's window of 1
    million tokens."""
    own, unknown = _bound_for_model(provider, parsed, parsed.model, long_context)
    by_content = parsed.opaque
    most = own
    for other in parsed.others:
        bound, why = _bound_for_model(provider, parsed, other, long_context)
        most = Spent(*map(max, astuple(most), astuple(bound)))
        if why and not unknown:
            unknown, by_content = why, True
    return UpperBound(most, own, unknown, by_content)


def _bound_for_model(provider: ProviderName, parsed: ParsedRequest, model: str, long_context: bool) -> tuple[Spent, str]:
    """Return the most that the request may use if this model answers, and why that is only assumed ("" if it is known)."""
    limits, listed = _limits(model), context_window(provider, model)
    window = _LONG_CONTEXT if long_context else limits.window or listed
    text = len(parsed.body) + _TEMPLATE_TOKENS
    most_input = (window or text) if parsed.opaque else min(text, window or text)
    own = limits.output or listed
    asked_output = parsed.output_tokens or (own or _ASSUMED_OUTPUT) * parsed.answers
    most_output = asked_output if own is None else min(asked_output, own * parsed.answers)
    unknown = ""
    if parsed.opaque and window is None:
        unknown = "it has files, references or tools of the provider, and the model's context window is unknown"
    elif parsed.output_tokens is None and own is None:
        unknown = (
            "it names no maximum of output tokens, and the model's is unknown; give the agent an option for the maximum, or remove "
            "the limits of tokens and cost (spec.agent.limits, the sweep's spec.budget)"
        )
    caches = parsed.caches and provider == "anthropic"  # only Anthropic charges more for cache writes
    return Spent(most_input, most_output, _most_cost(provider, model, most_input, most_output, caches=caches)), unknown


def _most_cost(provider: ProviderName, model: str, most_input: int, most_output: int, *, caches: bool) -> float:
    """Return the upper bound of the cost, for a provider that reads nothing from its cache.

    With ``caches``, the provider may write all input to its cache for an hour, which costs the most.
    """
    uses = [TokenUsage(input=most_input, output=most_output)]
    if caches:
        uses.append(TokenUsage(input=most_input, written=most_input, written_1h=most_input, output=most_output))
    return max(cost_usd(provider, model, usage) or 0.0 for usage in uses)


def _limits(model: str) -> _Model:
    starts = [start for start in _FAMILIES if model.startswith(start)]
    return _FAMILIES[max(starts, key=len)] if starts else _UNKNOWN
