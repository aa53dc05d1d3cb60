"""The outcome of one request: its row in the ledger, and what its answer, or the lack of one, shows about the provider."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import Final, Literal

from multistep.gateway.accounting.ledger_rows import Kind, RequestRow, Spent, State
from multistep.gateway.accounting.prices import answer_cost_usd
from multistep.gateway.http.client_connection import ClientConnection
from multistep.gateway.http.request_types import AllowedRequest, GatewayServices
from multistep.gateway.keys.tokens import StepClaims, StepKey
from multistep.gateway.model_api.answer_parsers import TokenUsage
from multistep.gateway.model_api.error_answers import HELD_TOO_LONG
from multistep.gateway.pace import Lane, stopwatch

LEFT_SECONDS: Final = 10.0
"""An agent that leaves a refused request sooner may do so on purpose, to get another attempt."""


class RequestOutcome:
    """Keeps the row of one request, and records its end."""

    def __init__(
        self, services: GatewayServices, client: ClientConnection, allowed: AllowedRequest, lane: Lane, most: Spent
    ) -> None:
        """Create the outcome of a request that is not in the ledger yet. ``most`` is the upper bound of its usage."""
        row = open_row(allowed.claims, allowed.route.provider, allowed.parsed.model, most, client.arrived)
        self.row = replace(row, content=_content(allowed) if allowed.claims.key.role == "judge" else "")
        self.number = 0
        """The request's position among all requests that its lane has sent."""
        self._services = services
        self._client = client
        self._allowed = allowed
        self._step = allowed.claims.key
        self._lane = lane
        self.add_held(allowed.held_seconds)
        self._in_memory = 0  # bytes of the answer in the gateway's memory

    @property
    def is_open(self) -> bool:
        """Whether the request's end is not recorded yet."""
        return self.row.state == "open"

    def add_held(self, seconds: float) -> None:
        """Add seconds for which the request was queued."""
        self.row = replace(self.row, held_seconds=self.row.held_seconds + seconds)

    def add_refusal(self, status: int) -> None:
        """Count a refusal of the provider with status 429, 503 or 529."""
        field = f"refused_{status}"
        self.row = replace(self.row, **{field: getattr(self.row, field) + 1})

    def drop_reservation(self) -> None:
        """Set the upper bound of the request's usage to 0, because the request is refused for the agent's own choice, not for a
        spent budget."""
        self.row = replace(self.row, reserved_input=0, reserved_output=0, reserved_usd=0.0)

    async def write(self) -> None:
        """Write the row to the ledger, if the request uses tokens."""
        if self._allowed.route.counted:
            await self._services.ledger.write(self.row)

    async def finish(
        self, state: State, status: int, usage: TokenUsage | None, kind: Kind = "", message: str = "", answered_by: str = ""
    ) -> None:
        """Record the end of the request. Call this again when newer usage is known.

        An unknown ``usage`` is None. ``kind`` and ``message`` say why the request failed. If the request names several models,
        ``answered_by`` is the one that the answer names.
        """
        if state == "done":
            self._lane.answered = max(self._lane.answered, self.number)
            if self._client.disconnected:  # the answer took as long as the request asked for
                self._services.silence.heard(self._step)
        if state == "done" or (state == "failed" and status == 200):
            self._lane.reached = max(self._lane.reached, self.number)
        left_at = self._client.left_at if self.is_open else self.row.left_at  # a client may leave as soon as it has the answer
        self.row = self.row.end(state=state, status=status, kind=kind, message=message, left_at=left_at)
        if usage is not None:
            provider, models = self._allowed.route.provider, self._allowed.models
            cost = 0.0 if usage == TokenUsage() else answer_cost_usd(provider, models, answered_by, usage)
            self.row = replace(
                self.row,
                input_tokens=usage.input,
                cached_tokens=usage.cached,
                output_tokens=usage.output,
                cost_usd=cost,
            )
        await self.write()

    def blame_silence(self) -> Kind:
        """Return the kind of failure if the provider sent nothing for ``answer_timeout_seconds``.

        A request can cause such a silence itself, e.g. if it asks for a long answer that is not streamed, or for a tool of the
        agent's own server. So it is the provider's failure only if the provider has completely answered no request that the lane
        sent later. Answers to earlier requests do not count, because an overloaded provider may still complete them.
        """
        return "" if self._lane.reached > self.number else "Provider"

    def heard(self) -> None:
        """Reset the step's silence, because the provider sent a part of the answer."""
        if not self._client.disconnected:
            self._services.silence.heard(self._step)

    def count_bytes(self, size: int) -> None:
        """Add to the bytes of the answer that the gateway has in memory. A negative number subtracts. Raises AnswerTooLarge."""
        self._services.answers.count_bytes(self._step, size, self._in_memory)
        self._in_memory += size

    def free_memory(self) -> None:
        """Stop counting the answer's bytes."""
        self.count_bytes(-self._in_memory)

    def parsing(self, size: int) -> AbstractAsyncContextManager[None]:
        """Return a context in which to parse a part of the answer of ``size`` bytes, as OpenSteps.parsing explains."""
        waiting = waiting_for_turn(self._services, self._step, self.add_held)
        return self._services.steps.parsing(self._step, size, self._allowed.claims.turn, waiting)

    async def model_works(self, *, for_others: bool) -> bool:
        """Return whether the provider has answered a request of the trial for the model. With ``for_others``, requests of all
        trials since the gateway's start count."""
        if for_others and self._lane.answered:
            return True
        return self._allowed.parsed.model in await self._services.ledger.answered(self._step.uid)


def _content(allowed: AllowedRequest) -> str:
    """Return the digest of a request's path and body."""
    return hashlib.blake2b(allowed.route.path.encode() + b"\0" + allowed.parsed.body, digest_size=16).hexdigest()


@asynccontextmanager
async def waiting_for_turn(services: GatewayServices, step: StepKey, add_held: Callable[[float], None]) -> AsyncIterator[None]:
    """Return a context in which a document of the step waits until those of other steps are parsed. The wait counts as a stall of
    the provider, so it extends the agent's timeout."""
    with stopwatch(add_held):
        async with services.stalls.waiting(step):
            yield


def end_unparsed(row: RequestRow, held: float, message: str, *, left: bool) -> RequestRow:
    """Return the row of a request that ended after ``held`` seconds, in which it waited to be parsed. ``left`` tells whether the
    agent disconnected."""
    kind: Kind = "Left" if left and held < LEFT_SECONDS else "Provider"
    unused = {"input_tokens": 0, "cached_tokens": 0, "output_tokens": 0, "cost_usd": 0.0}
    status = 0 if left else HELD_TOO_LONG
    return replace(row, held_seconds=held).end(
        state="gone" if left else "failed", status=status, kind=kind, message=message, **unused
    )


def open_row(claims: StepClaims, provider: str, model: str, most: Spent, began: float) -> RequestRow:
    """Return the row of a request that is not sent yet and may use at most ``most``. ``began`` is in seconds since the epoch."""
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


def refused_row(
    claims: StepClaims, kind: Literal["Path", "Configuration", "Own"], status: int, message: str, began: float, *, model: str = ""
) -> RequestRow:
    """Return the row of a request that the gateway refused, because its path is unknown (Path), the token is not for its model or
    its tokens cannot be recorded (Configuration), or the step has too many requests (Own). The ledger keeps one such row per step
    and kind. ``began`` is in seconds since the epoch."""
    row = replace(open_row(claims, "", model, Spent(), began), id=f"{kind.lower()} of {claims.key}")
    unused = {"input_tokens": 0, "cached_tokens": 0, "output_tokens": 0, "cost_usd": 0.0}
    return row.end(state="failed", status=status, kind=kind, message=message, **unused)
