"""One request that passed all checks: queue and send it, relay the answer, and record it in the ledger.

The gateway sends a request again only if no connection could be made, or if the provider refused it (429, 503, 529; no provider
charges for these answers), unless the account has no credit or the request alone exceeds a rate limit. Each time before the request
is sent, it waits in the queue.
"""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

from aiohttp import ClientConnectorError, ClientError, ClientResponse, ClientSession, ConnectionTimeoutError, web
from multidict import CIMultiDict
from yarl import URL

from multistep.backoff import Backoff
from multistep.gateway.accounting.budgets import Budgets, BudgetSpent, Reservation
from multistep.gateway.accounting.open_steps import Steps
from multistep.gateway.accounting.request_ledger import Kind, Ledger, Row, Spent, State, settled
from multistep.gateway.accounting.upper_bounds import cost_usd, has_price, worst_case
from multistep.gateway.accounting.waiting_seconds import Silence, Stalls
from multistep.gateway.http.connections import ClientConnection
from multistep.gateway.http.forward_answer import Relay, is_silence, message_of
from multistep.gateway.http.gateway_metrics import GatewayMetrics
from multistep.gateway.keys.credentials import Credential, Credentials
from multistep.gateway.keys.tokens import StepClaims
from multistep.gateway.model_api.answer_memory import AnswerMemory, AnswerTooLarge
from multistep.gateway.model_api.answer_parsers import Usage
from multistep.gateway.model_api.error_answers import HELD_TOO_LONG, Refused
from multistep.gateway.model_api.error_blame import (
    ProviderError,
    blame,
    exceeds_limit_alone,
    has_no_credit,
    parse_error,
    parsed,
    refuses_field,
)
from multistep.gateway.model_api.request_parsers import Asked
from multistep.gateway.model_api.routes import Route, upstream_headers, upstream_query
from multistep.gateway.pace import HoldExpired, Lanes, Loads, stopwatch
from multistep.gateway.settings import GatewaySettings

_KEY_MAY_BE_WRONG: Final = (401, 403)
_INVALID: Final = 400
_TOO_MANY: Final = 429
_REFUSALS: Final = frozenset((_TOO_MANY, 503, 529))
_NOT_SENT: Final = (ClientConnectorError, ConnectionTimeoutError)
_SHORTEST_PAUSE: Final = 0.2  # seconds; prevents a busy loop if the provider always answers Retry-After: 0
_BACKOFF: Final = Backoff(first=1.0, last=15.0, jitter=1.0)  # if the provider sends no Retry-After: at first 1 to 2 s
_AFTER_BUDGET: Final = 50.0  # maximum seconds added to the hold of a request that waited for a budget; clients leave after 300 s
_ERROR_BYTES: Final = 4096
_STREAM_OPTIONS: Final = "stream_options"
_MAY_REFUSE_FIELDS: Final = (400, 422)
_ERROR_SECONDS: Final = 10.0  # for the body of a refusal
LEFT_SECONDS: Final = 10.0
"""An agent that leaves a refused request before that may do so on purpose, to get another attempt."""


@dataclass(frozen=True)
class Services:
    """The objects of the gateway process that all requests use."""

    settings: GatewaySettings
    ledger: Ledger
    budgets: Budgets
    lanes: Lanes
    credentials: Credentials
    steps: Steps
    metrics: GatewayMetrics
    loads: Loads
    stalls: Stalls
    silence: Silence
    answers: AnswerMemory
    http: ClientSession


@dataclass(frozen=True)
class Call:
    """A request that passed all checks."""

    claims: StepClaims
    route: Route
    asked: Asked
    credential_id: str
    credential: Credential


@dataclass(frozen=True)
class _Refusal:
    """The provider refused the request, or no connection could be made (status 0). pause: seconds until the request is sent
    again."""

    status: int
    pause: float
    message: str


_OTHERS_REFUSED: Final = _Refusal(429, 0.0, "it refused other requests for the model")


class Exchange:
    """Sends one request and relays its answer."""

    def __init__(self, services: Services, client: ClientConnection, call: Call) -> None:
        self._services = services
        self._client = client
        self._call = call
        self._lane = services.lanes.of(call.credential.without_source(), call.asked.model, counted=call.route.counted)
        self._most = worst_case(call.route.provider, call.asked, long_context=_wants_long_context(client.request))
        self._row = _open_row(call, self._most.most, client.arrived)
        self._answered = ""  # the model that the answer names
        self._refusal: _Refusal | None = None
        self._held_by: _Refusal | None = None  # the provider's refusal for which the request waits, or waited when the agent left
        self._in_memory = 0  # bytes of the answer in the gateway's memory
        self._plain = self._lane.refuses_stream_options  # whether the body is sent as the agent sent it
        self._start = b""  # bytes of the answer that were already read
        self._end_wait: Callable[[], None] | None = None  # ends the wait for the provider, in services.silence
        self._number = 0  # this request's number in the order in which the lane sent its requests
        self._budget_seconds = 0.0  # time for which the request waited for room in a budget
        self._lost_seconds = 0.0  # time by which the trial's other requests shorten the hold, because of that wait

    async def run(self) -> web.StreamResponse:
        """Send the request and relay the answer to the agent. Raises Refused."""
        reservation = await self._reserve()
        self._budget_seconds = waited = self._row.held_seconds
        self._lost_seconds = max(0.0, waited - _AFTER_BUDGET) - max(0.0, waited - reservation.own_seconds - _AFTER_BUDGET)
        try:
            await self._write()
            return await self._send()
        except HoldExpired as error:
            raise await self._held_too_long(error) from None
        except asyncio.CancelledError:
            if self._row.state == "open":
                await self._leave()
            raise
        finally:
            self.hold(-self._in_memory)
            self._stop_waiting()
            try:
                if self._row.state == "open":
                    await self.finish("cut", 0, None if self._client.sent else Usage(), "Provider", "the gateway failed")
            finally:
                reservation.settle(_used(self._row))
                if self._call.route.counted:
                    self._services.metrics.count(self._row)

    def _wait(self) -> None:
        """Count the step as waiting for the provider, until the request ends or the agent leaves."""
        closed = self._services.steps.is_closed(self._call.claims.key)
        if self._end_wait is None and not self._client.disconnected and not closed:
            self._end_wait = self._services.silence.wait(self._call.claims.key)
            self._client.on_leave = self._stop_waiting

    def _stop_waiting(self) -> None:
        if self._end_wait is None:
            return
        if self._refusal is None and not self.blame_silence():
            self.heard()
        self._end_wait()

    async def _leave(self) -> None:
        """Record that the agent left, or that the step was closed, before the answer's end. If the provider refused the request
        until then, this is the provider's failure."""
        kind, message = self._blame_hold()
        status = self._held_by.status if self._held_by is not None else 0
        await self.finish("gone", status, None if self._client.sent else Usage(), kind, message)

    def _blame_hold(self) -> tuple[Kind, str]:
        if (refusal := self._held_by) is None:
            return "", ""
        return (
            "Provider" if self._row.held_seconds - self._budget_seconds >= LEFT_SECONDS else "Left",
            f"held for {self._row.held_seconds:.0f} s until the agent left; the provider refused the request: {refusal.message}",
        )

    async def finish(self, state: State, status: int, usage: Usage | None, kind: Kind = "", message: str = "") -> None:
        """Record the end of the request. The parameters are those of forward_answer.Request.finish."""
        if state == "done":
            self._lane.answered = max(self._lane.answered, self._number)
        if state == "done" or (state == "failed" and status == 200):
            self._lane.reached = max(self._lane.reached, self._number)
        if state == "done" and self._client.disconnected:  # the answer took as long as the request asked for
            self._services.silence.heard(self._call.claims.key)
        self._row = settled(self._row, state=state, status=status, kind=kind, message=message)
        if usage is not None:
            self._row = replace(
                self._row,
                input_tokens=usage.input,
                cached_tokens=usage.cached,
                output_tokens=usage.output,
                cost_usd=self._cost_usd(usage) if usage != Usage() else 0.0,
            )
        await self._write()

    def _cost_usd(self, usage: Usage) -> float | None:
        """Return the price of the answer. If the request names several models, it is that of the model that the answer names, or of
        the dearest one if the price of that model is unknown."""
        provider, asked = self._call.route.provider, self._call.asked
        if asked.others and (price := cost_usd(provider, self._answered, usage)) is not None:
            return price
        prices = [cost_usd(provider, each, usage) for each in (asked.model, *asked.others)]
        known = [each for each in prices if each is not None]
        return max(known) if len(known) == len(prices) else prices[0]

    def blame_silence(self) -> Kind:
        """Return the kind of failure if the provider sent nothing for ``answer_timeout_seconds``.

        A request can cause this itself, e.g. if it asks for a long answer that is not streamed, or for a tool of the agent's own
        server. So the failure is the provider's only if it has completely answered no request of the lane that was sent later.
        Answers to earlier requests do not count, because an overloaded provider may still complete them.
        """
        return "" if self._lane.reached > self._number else "Provider"

    def answered_by(self, model: str) -> None:
        """Note the model that the answer names."""
        self._answered = model

    def heard(self) -> None:
        """Note that the provider sent a part of the answer."""
        if not self._client.disconnected:
            self._services.silence.heard(self._call.claims.key)

    def hold(self, size: int) -> None:
        """Count bytes of the answer in memory. Raises AnswerTooLarge."""
        self._services.answers.hold(self._call.claims.key, size, self._in_memory)
        self._in_memory += size

    def parsing(self, size: int) -> AbstractAsyncContextManager[None]:
        """Return a context in which to parse a large part of the answer. size: in bytes."""
        return self._services.steps.parsing(self._call.claims.key, size)

    async def model_works(self, *, for_others: bool) -> bool:
        """Return whether the provider answered a request of the trial for the model. for_others: or of any trial since the
        gateway's start."""
        if for_others and self._lane.answered:
            return True
        return self._call.asked.model in await self._services.ledger.answered(self._call.claims.key.uid)

    async def _write(self) -> None:
        if self._call.route.counted:
            await self._services.ledger.write(self._row)

    async def _reserve(self) -> Reservation:
        claims, route, model = self._call.claims, self._call.route, self._call.asked.model
        if not route.counted:
            return Reservation((), Spent())
        if claims.limits_cost and not has_price(route.provider, model):
            raise await self._refused("Configuration", f"the price of {model} is unknown, so a budget in US dollars cannot be kept")
        if claims.limits_cost and self._call.asked.tier:
            raise await self._refused_own(f"the price of the service tier that the request to {model} asks for is unknown")
        others = self._call.asked.others
        if claims.limits_cost and (unknown := [each for each in others if not has_price(route.provider, each)]):
            raise await self._refused_own(f"the price of {unknown[0]!r}, a model that the request to {model} names, is unknown")
        if (why := self._most.unknown) and claims.limited:
            message = f"no budget can be kept for a request to {model}: {why}"
            raise await (self._refused_own(message) if self._most.by_content else self._refused("Unbounded", message))
        try:
            with stopwatch(self._add_held):
                return await self._services.budgets.reserve(claims, self._row.reserved, self._hold_left())
        except BudgetSpent as error:
            if error.by_own_requests:
                await self.finish("failed", HELD_TOO_LONG, Usage(), "Own", str(error))
                raise Refused(HELD_TOO_LONG, str(error)) from error
            own = error.scope == "trial" or (error.alone and await self.model_works(for_others=False))  # smaller ones fitted
            # Else an agent that asks for many answers, or names a dear model, could get any sweep suspended, or lost attempts
            # blamed for a spent budget.
            if self._call.asked.answers > 1 or await self._fits_alone():
                raise await self._refused_own(str(error)) from error
            raise await self._refused("Budget" if own else "SweepBudget", str(error)) from error

    async def _fits_alone(self) -> bool:
        """Return whether the budgets have room for the request without the other models that it names."""
        call = self._call
        if not call.asked.others:
            return False
        alone = replace(call.asked, others=())
        most = worst_case(call.route.provider, alone, long_context=_wants_long_context(self._client.request)).most
        try:
            (await self._services.budgets.reserve(call.claims, most, 0.0)).settle(Spent())
        except BudgetSpent:
            return False
        return True

    async def _refused_own(self, message: str) -> Refused:
        """Refuse the request for what the agent asks for: no lost attempt, nor the sweep's budget, is to blame."""
        self._row = replace(self._row, reserved_input=0, reserved_output=0, reserved_usd=0.0)
        return await self._refused("Budget", message)

    async def _refused(self, kind: Kind, message: str) -> Refused:
        await self.finish("failed", 400, Usage(), kind, message)
        return Refused(400, message)

    async def _held_too_long(self, error: HoldExpired) -> Refused:
        refusal, own = self._refusal, self._services.steps.open_requests(self._call.claims.key)
        crowds = error.over_share or own > self._lane.window  # the trial's own requests may make it wait, not the provider
        shortened = self._lost_seconds > self._row.held_seconds - self._budget_seconds and not error.too_long
        if refusal is None:
            kind: Kind = "Own" if shortened or (crowds and not self._lane.narrowed) else "Provider"
        else:
            kind = "Own" if shortened and refusal.status else "Provider"  # status 0: no agent can keep the gateway from connecting
        why = f"the provider refused the request: {refusal.message}" if refusal else "too many requests are ahead of it"
        message = f"held for {self._row.held_seconds:.0f} s; {why}"
        status = refusal.status if refusal else HELD_TOO_LONG
        await self.finish("failed", status, Usage(), kind, message)
        return Refused(HELD_TOO_LONG, message)

    async def _send(self) -> web.StreamResponse:
        while True:
            await self._enter()
            if (response := await self._attempt()) is not None:
                return response
            if self._client.disconnected:
                raise asyncio.CancelledError
            await self._pause()

    async def _enter(self) -> None:
        claims, entered = self._call.claims, False
        own = self._services.steps.open_requests(claims.key)
        if self._refusal is None and self._lane.narrowed and own <= self._lane.window:
            self._held_by = _OTHERS_REFUSED
        if self._held_by is not None:
            self._wait()
        try:
            with stopwatch(self._add_held):
                async with self._stalled_by_provider():
                    await self._lane.enter(claims.turn, claims.key.uid, self._hold_left(), retry=self._refusal is not None)
                    entered = True
        except BaseException:  # the agent may disconnect, or the ledger fail, while the stall is written
            if entered:
                self._lane.give_back(claims.key.uid)
            raise
        self._held_by = self._refusal

    async def _attempt(self) -> web.StreamResponse | None:
        """Send the request once; return None if it may be sent again."""
        refusal: _Refusal | None = None
        try:
            await self._refuse_closed()
            answer = await self._answer()
            if isinstance(answer, _Refusal):
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
                self._lane.leave(self._call.claims.key.uid)
            else:
                self._lane.leave_refused(self._call.claims.key.uid, refusal.pause)

    async def _relayed(self, answer: ClientResponse) -> web.StreamResponse:
        call = self._call
        key, asked = call.credential.key.get_secret_value(), call.asked
        if self._plain:
            asked = replace(asked, strips_usage=False, plain=None)
        try:
            return await Relay(self._client, answer, call.route.dialect, key, asked, self, self._start).run()
        except AnswerTooLarge as error:
            await self.finish("cut", answer.status, None, "Provider" if error.crowded else "", str(error))
            self._client.abort()
            raise Refused(HELD_TOO_LONG, str(error)) from error

    async def _refuse_closed(self) -> None:
        """Raise Refused if the step was closed while the request waited."""
        try:
            self._services.steps.refuse_closed(self._call.claims.key)
        except Refused as refused:
            kind, message = self._blame_hold()
            await self.finish("gone" if kind else "failed", refused.status, Usage(), kind, message or str(refused))
            raise

    async def _answer(self) -> ClientResponse | _Refusal:
        self._client.sent = True
        self._lane.sent += 1
        self._number = self._lane.sent
        self._wait()
        try:
            answer = await self._accepted()
        except _NOT_SENT as error:
            self._client.sent = False
            return _Refusal(0, _pause_without_advice(self._row), f"no connection: {type(error).__name__}")
        except (ClientError, TimeoutError, OSError) as error:
            message = f"the provider gave no answer: {type(error).__name__}"
            await self.finish("cut", 0, None, self.blame_silence() if is_silence(error) else "Provider", message)
            raise Refused(HELD_TOO_LONG, message) from error
        if answer.status not in _REFUSALS:
            self._services.loads.count(self._call.asked.model, refused=False)
            return answer
        async with answer:
            self._client.sent = False
            refusal = await self._refusal_of(answer)
        self._services.loads.count(self._call.asked.model, refused=True)
        return refusal

    async def _accepted(self) -> ClientResponse:
        """Send the request. If the provider rejects the field that the gateway added to the body, send the request again without
        it."""
        answer = await self._request()
        if self._plain or self._call.asked.plain is None or answer.status not in _MAY_REFUSE_FIELDS:
            return answer
        self._start = self._start or await _start_of(answer)
        if not refuses_field(self._start, _STREAM_OPTIONS):
            return answer
        answer.release()
        self._start, self._plain, self._lane.refuses_stream_options = b"", True, True
        return await self._request()

    async def _redirected(self, answer: ClientResponse) -> Refused:
        to = message_of(answer.headers.get("Location", "").encode(), self._call.credential.key.get_secret_value())
        message = f"the provider answered with a redirect{to and f' to {to}'}: baseURL must be the URL of the API itself"
        await self.finish("failed", answer.status, Usage(), "Configuration", message)
        return Refused(400, message)

    async def _request(self) -> ClientResponse:
        """Send the request. If the provider rejects the key, send the request once more with the key that its Secret has now: the
        key may have been rotated while the step ran."""
        answer = await self._request_once()
        self._start = await _start_of(answer) if answer.status == _INVALID else b""
        account = answer.status == _INVALID and blame(_INVALID, parse_error(parsed(self._start))) == "Account"  # as Gemini says it
        if answer.status not in _KEY_MAY_BE_WRONG and not account:
            return answer
        call, credentials = self._call, self._services.credentials
        newer = await credentials.after_rejection(call.credential_id, call.credential, self._hold_left())
        if newer is None:
            return answer
        answer.release()
        self._call, self._start = replace(call, credential=newer), b""
        return await self._request_once()

    async def _request_once(self) -> ClientResponse:
        call, request = self._call, self._client.request
        base = call.credential.base_url or self._services.settings.base_urls[call.route.provider]
        query = upstream_query(request.rel_url.raw_query_string)
        url = URL(f"{base.rstrip('/')}{call.route.path}{'?' + query if query else ''}", encoded=True)
        headers = upstream_headers(request.headers.items(), call.credential.header())
        return await self._services.http.request(
            request.method,
            url,
            headers=CIMultiDict(headers),
            data=(self._plain and call.asked.plain) or call.asked.body or None,
            skip_auto_headers=("User-Agent", "Accept", "Content-Type"),
            allow_redirects=False,
        )

    async def _refusal_of(self, answer: ClientResponse) -> _Refusal:
        field = f"refused_{answer.status}"
        self._row = replace(self._row, **{field: getattr(self._row, field) + 1})
        body = await _start_of(answer)
        pause = _advised_pause(answer)
        message = f"{answer.status} {message_of(body, self._call.credential.key.get_secret_value())}"
        if (kind := self._kind_of_refusal(answer, parse_error(parsed(body)), pause)) is not None:
            await self.finish("failed", answer.status, Usage(), kind, message)
            raise Refused(400, f"the provider refused the request: {message}")
        return _Refusal(answer.status, _pause_without_advice(self._row) if pause is None else pause, message)

    def _kind_of_refusal(self, answer: ClientResponse, error: ProviderError, pause: float | None) -> Kind | None:
        """Return the kind of failure of a refusal after which the request is not sent again; None for other refusals."""
        if answer.status != _TOO_MANY:
            return None
        own_api = self._call.credential.base_url is None  # other APIs use insufficient_quota for per-minute rate limits, too
        if blame(_TOO_MANY, error) == "Account" or (own_api and pause is None and has_no_credit(error)):
            return "Configuration"
        asked = self._call.asked
        size = 0 if asked.opaque or asked.caches else len(asked.body)  # cache reads do not count in Anthropic's limit
        return "" if exceeds_limit_alone(error, size, answer.headers) else None  # the agent's request is too large

    async def _pause(self) -> None:
        """Sleep for the last refusal's pause. Raises HoldExpired at once if the rest of ``hold_seconds`` is shorter."""
        assert self._refusal is not None
        pause = max(_SHORTEST_PAUSE, self._refusal.pause)
        if pause > (left := self._hold_left()):
            raise HoldExpired(too_long=pause > left + self._lost_seconds)
        with stopwatch(self._add_held):
            async with self._stalled_by_provider():
                await asyncio.sleep(pause)

    def _stalled_by_provider(self) -> AbstractAsyncContextManager[None]:
        """Return a context in which the step counts as stalled, if the provider's refusal of this or another request causes the
        wait."""
        refused = self._refusal is not None or self._lane.narrowed
        return self._services.stalls.waiting(self._call.claims.key) if refused else nullcontext()

    def _hold_left(self) -> float:
        more = min(_AFTER_BUDGET, self._budget_seconds)
        return max(0.0, self._services.settings.hold_seconds + more - self._row.held_seconds)

    def _add_held(self, seconds: float) -> None:
        self._row = replace(self._row, held_seconds=self._row.held_seconds + seconds)


def _wants_long_context(request: web.Request) -> bool:
    return any("context-1m" in each for each in request.headers.getall("anthropic-beta", []))


def _open_row(call: Call, most: Spent, began: float) -> Row:
    asked, claims = call.asked, call.claims
    return Row(
        id=uuid.uuid4().hex,
        step=str(claims.key),
        sweep=claims.sweep,
        agent=claims.agent or claims.key.role,
        provider=call.route.provider,
        model=asked.model,
        reserved_input=most.input_tokens,
        reserved_output=most.output_tokens,
        reserved_usd=most.cost_usd,
        began=began,
    )


def unknown_path_row(claims: StepClaims, message: str) -> Row:
    """Return the row of a request to an unknown path, one per step."""
    step, now = str(claims.key), time.time()
    row = Row(f"path of {step}", step, claims.sweep, claims.agent or claims.key.role, "", "", 0, 0, 0.0, began=now)
    spent = {"input_tokens": 0, "cached_tokens": 0, "output_tokens": 0, "cost_usd": 0.0}
    return settled(row, state="failed", status=404, kind="Path", message=message, **spent)


def _used(row: Row) -> Spent:
    """Return the amount with which a finished request counts in budgets, by the same rule as Ledger.spent."""
    if row.input_tokens is None:
        return row.reserved
    return Spent(row.input_tokens, row.output_tokens or 0, row.cost_usd or 0.0)


def _pause_without_advice(row: Row) -> float:
    """Return the back-off in seconds if the provider sent no Retry-After. It doubles with each refusal of the request."""
    return _BACKOFF.seconds(row.refused_429 + row.refused_503 + row.refused_529)


async def _start_of(answer: ClientResponse) -> bytes:
    """Return the first bytes of an error's body: as many as arrive soon, at most _ERROR_BYTES."""
    body = b""
    with suppress(ClientError, TimeoutError, OSError):
        async with asyncio.timeout(_ERROR_SECONDS):
            while len(body) < _ERROR_BYTES and (data := await answer.content.read(_ERROR_BYTES - len(body))):
                body += data
    return body


def _advised_pause(answer: ClientResponse) -> float | None:
    """Return the wait in seconds that the header Retry-After (a number or a date) asks for; None without a valid header."""
    text = answer.headers.get("Retry-After", "").strip()
    if re.fullmatch(r"\d{1,9}(\.\d+)?", text):
        return float(text)
    try:
        at = parsedate_to_datetime(text)
    except ValueError:
        return None
    return max(0.0, (at.replace(tzinfo=at.tzinfo or UTC) - datetime.now(UTC)).total_seconds())
