"""Queues and sends a request that passed all checks, relays the answer, and records both in the ledger.

The gateway sends a request again only if no connection could be made, or if the provider refused it and the refusal is not final
(refusals.py). The request waits in the queue each time.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from typing import Final

from aiohttp import ClientConnectorError, ClientError, ClientResponse, ConnectionTimeoutError, web

from multistep.gateway.accounting.budgets import Reservation
from multistep.gateway.accounting.ledger_rows import Kind
from multistep.gateway.accounting.upper_bounds import upper_bound
from multistep.gateway.capture.request_capture import RequestCapture
from multistep.gateway.http.client_connection import ClientConnection
from multistep.gateway.http.forward_answer import Relay, error_message, is_silence
from multistep.gateway.http.refusals import OTHERS_REFUSED, REFUSALS, Refusal, kind_of_refusal, pause_after, pause_without_advice
from multistep.gateway.http.request_outcome import LEFT_SECONDS, RequestOutcome
from multistep.gateway.http.request_types import AllowedRequest, GatewayServices
from multistep.gateway.http.reserve_budget import BudgetRefusal, reserve
from multistep.gateway.http.send_upstream import UpstreamRequest, start_of
from multistep.gateway.model_api.answer_memory import AnswerTooLarge
from multistep.gateway.model_api.answer_parsers import CHAT, MESSAGES, TokenUsage
from multistep.gateway.model_api.error_answers import HELD_TOO_LONG, Refused
from multistep.gateway.model_api.token_fields import AnswerForms
from multistep.gateway.pace import HoldExpired, stopwatch

_NOT_SENT: Final = (ClientConnectorError, ConnectionTimeoutError)
_SHORTEST_PAUSE: Final = 0.2  # in seconds. It prevents a busy loop if the provider always answers Retry-After: 0
# Maximum seconds that are added to the hold of a request that waited for a budget. Clients disconnect after 300 s.
_AFTER_BUDGET: Final = 50.0
_LEFT: Final = "the client left while the request waited for room in the budget"


class Exchange:
    """Sends one request, and relays its answer."""

    def __init__(self, services: GatewayServices, client: ClientConnection, allowed: AllowedRequest) -> None:
        route, model = allowed.route, allowed.parsed.model
        self._services = services
        self._client = client
        self._allowed = allowed
        self._step = allowed.claims.key
        self._lane = services.lanes.get(allowed.credential.without_source(), model, counted=route.counted)
        self._upstream = UpstreamRequest(services, client.request, allowed, self._lane)
        self._bound = upper_bound(route.provider, allowed.parsed, long_context=allowed.long_context)
        self._outcome = RequestOutcome(services, client, allowed, self._lane, self._bound.most)
        self._capture = self._new_capture() if allowed.claims.captures and route.counted else None
        self._refusal: Refusal | None = None  # the provider's last refusal of this request
        self._held_by: Refusal | None = None  # the refusal for which the request waits, or waited when the agent left
        self._budget_seconds = 0.0  # time for which the request waited for room in a budget
        self._lost_seconds = 0.0  # time by which the wait for the trial's other requests shortens the hold
        self._waits = False  # whether the step counts as waiting for the provider, in services.silence

    async def run(self) -> web.StreamResponse:
        """Send the request and relay the answer to the agent. Raises Refused."""
        reservation = await self._reserve()
        waited = self._held_seconds
        self._budget_seconds = waited
        self._lost_seconds = max(0.0, waited - _AFTER_BUDGET) - max(0.0, waited - reservation.own_seconds - _AFTER_BUDGET)
        try:
            await self._outcome.write()
            await self._refuse_uncaptured()
            return await self._send()
        except HoldExpired as error:
            raise await self._held_too_long(error) from None
        except asyncio.CancelledError:
            if self._outcome.is_open:
                await self._leave()
            raise
        finally:
            if self._capture is not None:
                self._capture.end("Cut")
            self._outcome.free_memory()
            self._stop_waiting()
            try:
                if self._outcome.is_open:
                    await self._outcome.finish("cut", 0, self._usage_without_answer, "Provider", "the gateway failed")
            finally:
                reservation.release(self._outcome.row.used)
                if self._allowed.route.counted:
                    captured = self._capture and self._capture.usage
                    self._services.metrics.count(self._outcome.row, captured.output if captured else 0)

    @property
    def _usage_without_answer(self) -> TokenUsage | None:
        captured = None if self._capture is None else self._capture.usage
        return captured if self._client.sent else TokenUsage()

    @property
    def _held_seconds(self) -> float:
        return self._outcome.row.held_seconds

    async def _reserve(self) -> Reservation:
        try:
            with stopwatch(self._outcome.add_held):
                return await reserve(self._services, self._allowed, self._bound, self._hold_left())
        except asyncio.CancelledError:
            if self._step.role == "judge":  # whose verdict must not count without the answer
                await self._outcome.finish("gone", 0, TokenUsage(), "Own", _LEFT)
            raise
        except BudgetRefusal as refusal:
            if refusal.own_choice:
                self._outcome.drop_reservation()
            await self._outcome.finish("failed", refusal.status, TokenUsage(), refusal.kind, str(refusal))
            raise Refused(refusal.status, str(refusal)) from refusal

    # -- waiting for the turn

    async def _send(self) -> web.StreamResponse:
        weights, sweep = self._services.weights, self._allowed.claims.sweep
        while True:
            await self._enter()
            if weights.is_paused(sweep):
                self._lane.give_back(self._step.uid)
                async with self._services.stalls.waiting(self._step):
                    await weights.wait_while_paused(sweep)
                continue
            with weights.sending(sweep):
                response = await self._attempt()
            if response is not None:
                return response
            if self._client.disconnected:
                raise asyncio.CancelledError
            await self._pause()

    async def _enter(self) -> None:
        claims, entered = self._allowed.claims, False
        own = self._services.steps.open_requests(self._step)
        if self._refusal is None and self._lane.narrowed and own <= self._lane.window:
            self._held_by = OTHERS_REFUSED
        if self._held_by is not None:
            self._wait()
        try:
            with stopwatch(self._outcome.add_held):
                async with self._stalled_by_provider():
                    await self._lane.enter(claims.turn, self._step.uid, self._hold_left(), retry=self._refusal is not None)
                    entered = True
        except BaseException:  # the agent may disconnect, or the ledger may fail, while the ledger records the stall
            if entered:
                self._lane.give_back(self._step.uid)
            raise
        self._held_by = self._refusal

    async def _pause(self) -> None:
        """Sleep for the last refusal's pause. Raises HoldExpired at once if the rest of ``hold_seconds`` is shorter."""
        assert self._refusal is not None
        pause = max(_SHORTEST_PAUSE, self._refusal.pause)
        left = self._hold_left()
        if pause > left:
            raise HoldExpired(too_long=pause > left + self._lost_seconds)
        with stopwatch(self._outcome.add_held):
            async with self._stalled_by_provider():
                await asyncio.sleep(pause)

    def _stalled_by_provider(self) -> AbstractAsyncContextManager[None]:
        """Return a context for a wait. The step counts as stalled in it if the wait follows from the provider's refusal of this or
        another request."""
        refused = self._refusal is not None or self._lane.narrowed
        return self._services.stalls.waiting(self._step) if refused else nullcontext()

    def _hold_left(self) -> float:
        more = min(_AFTER_BUDGET, self._budget_seconds)
        return max(0.0, self._services.settings.hold_seconds + more - self._held_seconds)

    async def _held_too_long(self, error: HoldExpired) -> Refused:
        refusal, own = self._refusal, self._services.steps.open_requests(self._step)
        # The trial's own requests, not the provider, may be why this request waits.
        crowds = error.over_share or own > self._lane.window
        shortened = self._lost_seconds > self._held_seconds - self._budget_seconds and not error.too_long
        if refusal is None:
            kind: Kind = "Own" if shortened or (crowds and not self._lane.narrowed) else "Provider"
        else:
            # Without an answer (status 0), the provider is to blame, because no agent can keep the gateway from connecting.
            kind = "Own" if shortened and refusal.status else "Provider"
        why = f"the provider refused the request: {refusal.message}" if refusal else "too many requests are ahead of it"
        message = f"held for {self._held_seconds:.0f} s; {why}"
        await self._outcome.finish("failed", refusal.status if refusal else HELD_TOO_LONG, TokenUsage(), kind, message)
        return Refused(HELD_TOO_LONG, message)

    # -- the agent leaves

    async def _leave(self) -> None:
        """Record that the agent left, or that the step was closed, before the answer's end. This is the provider's failure if the
        provider had refused the request until then."""
        kind, message = self._blame_hold()
        if self._capture is not None:
            self._capture.end("Aborted")
        status = 0 if self._held_by is None else self._held_by.status
        await self._outcome.finish("gone", status, self._usage_without_answer, kind, message)

    def _blame_hold(self) -> tuple[Kind, str]:
        if self._held_by is None:
            return "", ""
        held = f"held for {self._held_seconds:.0f} s until the agent left"
        message = f"{held}; the provider refused the request: {self._held_by.message}"
        return "Provider" if self._held_seconds - self._budget_seconds >= LEFT_SECONDS else "Left", message

    async def _refuse_closed(self) -> None:
        """Raise Refused if the step was closed while the request waited."""
        try:
            self._services.steps.refuse_closed(self._step)
        except Refused as refused:
            kind, message = self._blame_hold()
            await self._outcome.finish("gone" if kind else "failed", refused.status, TokenUsage(), kind, message or str(refused))
            raise

    def _wait(self) -> None:
        """Count the step as waiting for the provider, until the request ends or the agent leaves."""
        closed = self._services.steps.is_closed(self._step)
        if not self._waits and not self._client.disconnected and not closed:
            self._waits = True
            self._services.silence.start_wait(self._step)
            self._client.on_leave = self._stop_waiting

    def _stop_waiting(self) -> None:
        if not self._waits:
            return
        self._waits = False
        if self._refusal is None and not self._outcome.blame_silence():
            self._outcome.heard()
        self._services.silence.end_wait(self._step)

    # -- recording tokens

    def _new_capture(self) -> RequestCapture:
        weights, claims = self._services.weights, self._allowed.claims
        version = partial(weights.version, claims.sweep)
        return RequestCapture(self._services.files, claims, self._outcome.row.id, self._allowed.parsed, version)

    async def _refuse_uncaptured(self) -> None:
        """Raise Refused if the tokens of the request must be recorded and cannot."""
        if self._capture is None:
            return
        route = self._allowed.route
        if self._allowed.credential.base_url is None:
            message = f"capture Tokens: {route.provider} gives no token ids; baseURL must be the URL of a server of vLLM or SGLang"
        elif route.api not in (CHAT, MESSAGES):
            message = f"capture Tokens: the tokens of {route.path} are not recorded, only those of chat completions and messages"
        else:
            return
        kind: Kind = "" if await self._outcome.model_works(for_others=False) else "Configuration"
        await self._outcome.finish("failed", 400, TokenUsage(), kind, message)
        raise Refused(400, message)

    async def _start_capture(self) -> None:
        if self._capture is not None:
            forms, upstream = AnswerForms(), self._upstream
            if not upstream.parsed.converted:
                forms = await self._services.forms.get(upstream.url, upstream.credential, upstream.parsed.model)
            await self._capture.start(upstream.parsed, forms)

    # -- sending

    async def _attempt(self) -> web.StreamResponse | None:
        """Send the request once. Return None if it may be sent again."""
        refusal: Refusal | None = None
        try:
            await self._refuse_closed()
            await self._start_capture()
            answer = await self._answer()
            if isinstance(answer, Refusal):
                self._refusal = refusal = answer
                if not self._client.disconnected:
                    self._held_by = refusal
                return None
            self._held_by = None
            async with answer:
                if 300 <= answer.status < 400:
                    raise await self._redirected(answer)
                return await self._relayed(answer)
        finally:
            if refusal is None:
                self._lane.leave(self._step.uid)
            else:
                self._lane.leave_refused(self._step.uid, refusal.pause)

    async def _answer(self) -> ClientResponse | Refusal:
        self._client.sent = True
        self._lane.sent += 1
        self._outcome.number = self._lane.sent
        self._wait()
        try:
            answer = await self._upstream.send(self._hold_left())
        except _NOT_SENT as error:
            self._client.sent = False
            return Refusal(0, pause_without_advice(self._refusals), f"no connection: {type(error).__name__}")
        except (ClientError, TimeoutError, OSError) as error:
            message = f"the provider gave no answer: {type(error).__name__}"
            await self._outcome.finish("cut", 0, None, self._outcome.blame_silence() if is_silence(error) else "Provider", message)
            raise Refused(HELD_TOO_LONG, message) from error
        if answer.status not in REFUSALS:
            self._services.loads.count(self._allowed.parsed.model, refused=False)
            return answer
        async with answer:
            self._client.sent = False
            refusal = await self._refused(answer)
        self._services.loads.count(self._allowed.parsed.model, refused=True)
        return refusal

    async def _refused(self, answer: ClientResponse) -> Refusal:
        """Record and return the provider's refusal. Raises Refused if the request must not be sent again."""
        self._outcome.add_refusal(answer.status)
        body = await start_of(answer)
        message = f"{answer.status} {error_message(body, self._key)}"
        own_api = self._upstream.credential.base_url is None
        kind = kind_of_refusal(answer, body, self._upstream.parsed, own_api=own_api)
        if kind is not None:
            await self._outcome.finish("failed", answer.status, TokenUsage(), kind, message)
            raise Refused(400, f"the provider refused the request: {message}")
        return Refusal(answer.status, pause_after(answer, self._refusals), message)

    @property
    def _refusals(self) -> int:
        row = self._outcome.row
        return row.refused_429 + row.refused_503 + row.refused_529

    async def _redirected(self, answer: ClientResponse) -> Refused:
        to = error_message(answer.headers.get("Location", "").encode(), self._key)
        message = f"the provider answered with a redirect{to and f' to {to}'}: baseURL must be the URL of the API itself"
        await self._outcome.finish("failed", answer.status, TokenUsage(), "Configuration", message)
        return Refused(400, message)

    async def _relayed(self, answer: ClientResponse) -> web.StreamResponse:
        api, upstream = self._allowed.route.api, self._upstream
        try:
            return await Relay(
                self._client, answer, api, self._key, upstream.parsed, self._outcome, upstream.start, self._capture
            ).run()
        except AnswerTooLarge as error:
            await self._outcome.finish("cut", answer.status, None, "Provider" if error.crowded else "", str(error))
            self._client.abort()
            raise Refused(HELD_TOO_LONG, str(error)) from error

    @property
    def _key(self) -> str:
        """The provider's key, which must not reach the agent."""
        return self._upstream.credential.key.get_secret_value()
