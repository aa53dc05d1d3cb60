"""The ledger's row of a request, and the amounts that budgets count."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

State = Literal["open", "done", "failed", "cut", "gone", "lost"]
"""State of a request.

- open: the request is queued or at the provider.
- done: the answer is complete.
- failed: the provider or the gateway refused the request.
- cut: the provider's answer ended too early or is missing.
- gone: the agent disconnected, and the answer did not end within drain_seconds.
- lost: the gateway restarted while the request was open.
"""
Kind = Literal["", "Provider", "Configuration", "Budget", "SweepBudget", "Unbounded", "Own", "Path", "Left"]
"""Why a request failed (LastFailure.kind explains most values), or "".

- Own: the trial's other requests made this one wait for too long.
- Left: the agent disconnected soon after the provider had refused the request.
"""
NOT_COUNTED: Final[frozenset[Kind]] = frozenset(("Budget", "SweepBudget", "Unbounded", "Own", "Path"))
"""Kinds of failures that are not the provider's: these requests got no answer, and do not count as sent."""


@dataclass(frozen=True)
class Spent:
    """The amounts that a trial or a sweep used. A request of unknown usage counts with its reservation."""

    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0

    def __add__(self, other: Spent) -> Spent:
        return Spent(
            self.input_tokens + other.input_tokens, self.output_tokens + other.output_tokens, self.cost_usd + other.cost_usd
        )

    def __sub__(self, other: Spent) -> Spent:
        return self + Spent(-other.input_tokens, -other.output_tokens, -other.cost_usd)


@dataclass(frozen=True)
class RequestRow:
    """One request. Budgets count the ``reserved_`` amounts, the most that the request may use, while its usage is unknown."""

    id: str
    step: str
    """A StepKey as text."""
    sweep: str
    agent: str
    provider: str
    model: str
    reserved_input: int
    reserved_output: int
    reserved_usd: float
    began: float = field(default_factory=time.time)
    ended: float | None = None
    state: State = "open"
    status: int = 0
    input_tokens: int | None = None
    """Unknown usage is None here and in the next three fields."""
    cached_tokens: int | None = None
    output_tokens: int | None = None
    cost_usd: float | None = None
    held_seconds: float = 0.0
    """Time for which the request was queued."""
    refused_429: int = 0
    """Number of the provider's answers with status 429. After each, the request was queued again."""
    refused_503: int = 0
    refused_529: int = 0
    kind: Kind = ""
    message: str = ""
    content: str = ""
    """Digest of what a judge asked, which a repetition of the request has, too; "" for the requests of agents."""
    left_at: float | None = None
    """When the client left before its answer was complete; None if it did not."""

    @property
    def incomplete(self) -> bool:
        """Whether the usage is unknown, although the provider may have charged for the request."""
        return self.input_tokens is None

    @property
    def reserved(self) -> Spent:
        """The upper bound of what the request may use."""
        return Spent(self.reserved_input, self.reserved_output, self.reserved_usd)

    @property
    def used(self) -> Spent:
        """The amount with which the finished request counts in budgets, by the same rule as RequestLedger.spent."""
        if self.input_tokens is None:
            return self.reserved
        return Spent(self.input_tokens, self.output_tokens or 0, self.cost_usd or 0.0)

    @property
    def refusals(self) -> Mapping[int, int]:
        """How often the provider refused the request, by status."""
        return {429: self.refused_429, 503: self.refused_503, 529: self.refused_529}

    def end(self, **changes: Any) -> RequestRow:
        """Return the row with these changes, ended at the current time."""
        return replace(self, ended=time.time(), **changes)
