"""The record of one request: its row in the ledger, from the reservation to the usage."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import replace

from multistep.gateway.accounting.ledger_rows import Kind, RequestRow, Spent, State
from multistep.gateway.accounting.request_ledger import RequestLedger
from multistep.gateway.accounting.upper_bounds import answer_cost_usd
from multistep.gateway.keys.tokens import StepClaims
from multistep.gateway.model_api.answer_parsers import TokenUsage
from multistep.providers import ProviderName


class RequestRecord:
    """Keeps the row of one request.

    models: the requested model, and others that may answer in its place; in_ledger: False for requests that use no tokens, whose
    rows are in memory only.
    """

    def __init__(
        self, ledger: RequestLedger, row: RequestRow, provider: ProviderName, models: Sequence[str], *, in_ledger: bool
    ) -> None:
        self.row = row
        self._ledger = ledger
        self._provider: ProviderName = provider
        self._models = models
        self._in_ledger = in_ledger

    def add_held(self, seconds: float) -> None:
        """Add a time for which the request was queued."""
        self.row = replace(self.row, held_seconds=self.row.held_seconds + seconds)

    def add_refusal(self, status: int) -> None:
        """Count a refusal of the provider with status 429, 503 or 529."""
        field = f"refused_{status}"
        self.row = replace(self.row, **{field: getattr(self.row, field) + 1})

    def drop_reservation(self) -> None:
        """Set the most that the request may use to 0: the agent's own choice, not a spent budget, is why it is refused."""
        self.row = replace(self.row, reserved_input=0, reserved_output=0, reserved_usd=0.0)

    async def write(self) -> None:
        """Write the row to the ledger."""
        if self._in_ledger:
            await self._ledger.write(self.row)

    async def finish(
        self, state: State, status: int, usage: TokenUsage | None, kind: Kind = "", message: str = "", answered_by: str = ""
    ) -> None:
        """Write the end of the request; may be called again with newer usage. The parameters are those of
        forward_answer.AnsweredRequest.finish."""
        self.row = self.row.end(state=state, status=status, kind=kind, message=message)
        if usage is not None:
            cost = 0.0 if usage == TokenUsage() else answer_cost_usd(self._provider, self._models, answered_by, usage)
            self.row = replace(
                self.row,
                input_tokens=usage.input,
                cached_tokens=usage.cached,
                output_tokens=usage.output,
                cost_usd=cost,
            )
        await self.write()


def open_row(claims: StepClaims, provider: str, model: str, most: Spent, began: float) -> RequestRow:
    """Return the row of a request that is not sent yet. most: the most that it may use; began: seconds since the epoch."""
    return RequestRow(
        id=uuid.uuid4().hex,
        step=str(claims.key),
        sweep=claims.sweep,
        agent=claims.agent or claims.key.role,
        provider=provider,
        model=model,
        reserved_input=most.input_tokens,
        reserved_output=most.output_tokens,
        reserved_usd=most.cost_usd,
        began=began,
    )


def unknown_path_row(claims: StepClaims, message: str) -> RequestRow:
    """Return the row of a request to an unknown path, one per step."""
    row = replace(open_row(claims, "", "", Spent(), time.time()), id=f"path of {claims.key}")
    unused = {"input_tokens": 0, "cached_tokens": 0, "output_tokens": 0, "cost_usd": 0.0}
    return row.end(state="failed", status=404, kind="Path", message=message, **unused)
