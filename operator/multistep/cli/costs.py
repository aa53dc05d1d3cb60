"""What commands print of the tokens and costs of a trial or a sweep."""

from __future__ import annotations

from multistep.api.common.plural import plural
from multistep.api.sweep.sweep import SweepStatus
from multistep.api.trial.status import Usage
from multistep.engine.score.usage_totals import omission


def usage_text(usage: Usage) -> str:
    """Return a line with the tokens and the cost of a trial. The line says whether the gateway or the agent counted them."""
    parts = [
        f"{_amount(usage.input_tokens)} input tokens ({_amount(usage.cached_tokens)} cached)",
        f"{_amount(usage.output_tokens)} output tokens",
        "unknown cost" if usage.cost_usd is None else f"${usage.cost_usd:.4f}",
    ]
    parts += [plural(usage.requests, "request")] if usage.requests is not None else []
    parts += [f"held {usage.held_seconds:.0f} s"] if (usage.held_seconds or 0.0) >= 1 else []
    parts += [omission(usage.incomplete)] if usage.incomplete else []
    return f"used {', '.join(parts)}, counted by the {usage.source.lower()}"


def _amount(tokens: int | None) -> str:
    return "unknown" if tokens is None else f"{tokens:,}"


def sweep_cost_text(status: SweepStatus) -> str:
    """Return a line with the cost of a sweep and its budget; "" if neither is known."""
    if status.cost_usd is not None:
        of = f" of {status.budget.cost_usd:g}" if status.budget else ""
        return f"cost: {status.cost_usd:.6g}{of} USD"
    return f"cost: none known so far, of {status.budget.cost_usd:g} USD" if status.budget else ""
