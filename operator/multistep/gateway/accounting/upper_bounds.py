"""Upper bounds of a request's tokens and cost, which budgets reserve before the request is sent.

A token has at least one byte, so a text has at most as many tokens as bytes. If the request has files, references or tools of the
provider, its body does not show all tokens. The bound is then the model's context window.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple
from typing import Final, NamedTuple

from multistep.gateway.accounting.ledger_rows import Spent
from multistep.gateway.accounting.prices import context_window, cost_usd
from multistep.gateway.model_api.answer_parsers import TokenUsage
from multistep.gateway.model_api.request_parsers import ParsedRequest
from multistep.providers import ProviderName

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
