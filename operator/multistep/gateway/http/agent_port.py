"""The port that agents call. It checks a request's path, token, credential and model, and then forwards the request."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, get_args

from aiohttp import web

from multistep.gateway.accounting.ledger_rows import Spent
from multistep.gateway.http.client_connection import ClientConnection
from multistep.gateway.http.model_request import Exchange
from multistep.gateway.http.request_outcome import end_unparsed, open_row, refused_row, waiting_for_turn
from multistep.gateway.http.request_types import AllowedRequest, GatewayServices
from multistep.gateway.keys.credentials import Credential
from multistep.gateway.keys.tokens import InvalidToken, Keyring, StepClaims, verify_token
from multistep.gateway.model_api.answer_parsers import CHAT, MESSAGES
from multistep.gateway.model_api.error_answers import HELD_TOO_LONG, Refused
from multistep.gateway.model_api.forwarded_headers import token_of
from multistep.gateway.model_api.messages_as_chat import NotConvertible
from multistep.gateway.model_api.request_parsers import InvalidBody, ParsedRequest, parse_request
from multistep.gateway.model_api.routes import Route, find_route, provider_of
from multistep.providers import ProviderName

# Statuses with which a request is refused before it is in the ledger, whatever its content. A judge's request gets a row, because
# a process of the agent may cause this, and a verdict must not count without the answer.
_UNRECORDED: Final = (425, 429)
_log: Final = logging.getLogger(__name__)


class AgentPort:
    """Handles all requests of agents."""

    def __init__(self, services: GatewayServices, keyring: Keyring) -> None:
        self._services = services
        self._keyring = keyring
        self._tasks: set[asyncio.Task[web.StreamResponse]] = set()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer a request. If the agent disconnects after the request was sent, the gateway still reads the answer for its
        usage."""
        client = ClientConnection(request)
        task = asyncio.create_task(self._answered(client))
        self._tasks.add(task)
        task.add_done_callback(self._done)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            client.leave()
            if client.sent and not client.ends_on_leave:
                asyncio.get_running_loop().call_later(self._services.settings.drain_seconds, task.cancel)
            else:
                task.cancel()
            raise

    async def stalls(self, request: web.Request) -> web.Response:
        """Answer with the seconds for which the provider stalled the token's step."""
        try:
            claims = self._claims(request, "openai")
        except Refused as refused:
            return refused.response("openai")
        return web.json_response({"stalledSeconds": self._services.stalls.seconds(claims.key)})

    def _done(self, task: asyncio.Task[web.StreamResponse]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a request failed", exc_info=error)

    async def _answered(self, client: ClientConnection) -> web.StreamResponse:
        try:
            return await self._allowed(client)
        except Refused as refused:
            return refused.response(provider_of(client.request.path))
        except web.HTTPException:
            raise
        except ConnectionError:  # the agent left while it sent the body
            client.leave()
            return web.Response(status=400)

    async def _allowed(self, client: ClientConnection) -> web.StreamResponse:
        request = client.request
        if "websocket" in request.headers.get("Upgrade", "").lower():  # servers may ignore other upgrades, e.g. to HTTP/2
            raise Refused(426, "websockets are not supported; use HTTP")
        route = find_route(request.method, request.path)
        if route is None:
            raise await self._unknown_path(request)
        claims = self._claims(request, route.provider)
        try:
            return await self._counted(client, route, claims)
        except Refused as refused:
            if refused.status in _UNRECORDED and claims.key.role == "judge":
                await self._services.ledger.write(refused_row(claims, "Own", refused.status, str(refused), time.time()))
            raise

    async def _counted(self, client: ClientConnection, route: Route, claims: StepClaims) -> web.StreamResponse:
        """Answer a request that counts as open for its step. Raises Refused."""
        request = client.request
        with self._services.steps.open_request(claims.key) as count_body:
            parsed, held = await self._parsed(request, route, count_body, claims)
            self._services.steps.refuse_closed(claims.key)  # the step may have been closed while the agent sent the body
            named = (parsed.model, *parsed.others) if parsed.model or route.counted else ()
            for model in named if claims.models else ():
                if model not in claims.models:
                    raise await self._other_model(claims, model[:200])
            if parsed.by_provider:
                raise Refused(400, f"spec.agent.providerTools is Refuse, and the request has {parsed.by_provider}")
            self._services.steps.count_model(claims.key, parsed.model)
            credential = await self._credential(claims, route)
            allowed = AllowedRequest(claims, route, parsed, credential, _wants_long_context(request), held)
            response = await Exchange(self._services, client, allowed).run()
            if not response.prepared:
                # The request counts as open until the answer is sent, because an unread answer takes memory.
                await client.send(response)
            return response

    async def _other_model(self, claims: StepClaims, model: str) -> Refused:
        """Record a request for a model that the token is not for, and return its refusal. Without the record, a verdict that the
        judge gave without the answer would count."""
        message = f"this step may not use the model {model!r}, only {', '.join(claims.models)}"
        await self._services.ledger.write(refused_row(claims, "Configuration", 403, message, time.time(), model=model))
        return Refused(403, message)

    async def _unknown_path(self, request: web.Request) -> Refused:
        """Record a request to an unknown path, at most one per step, and return its refusal. If a step sends no other requests, the
        operator does not count it as the agent's failure."""
        message = f"{request.method} {request.path[:200]} is not a path of a supported API"
        tokens = [token for provider in get_args(ProviderName) if (token := token_of(request, provider))]
        for token in tokens:
            with suppress(InvalidToken, Refused):
                claims = verify_token(token, self._keyring.secrets())
                self._services.steps.refuse_closed(claims.key)
                await self._services.ledger.write(refused_row(claims, "Path", 404, message, time.time()))
                break
        return Refused(404, message)

    def _claims(self, request: web.Request, provider: ProviderName) -> StepClaims:
        try:
            claims = verify_token(token_of(request, provider), self._keyring.secrets())
        except InvalidToken as error:
            raise Refused(401, f"the step token is invalid: {error}") from error
        self._services.steps.refuse_closed(claims.key)
        return claims

    async def _parsed(
        self, request: web.Request, route: Route, count_body: Callable[[int], None], claims: StepClaims
    ) -> tuple[ParsedRequest, float]:
        """Return the request's parsed body, and the seconds for which it waited until the bodies of other steps were parsed."""
        if any(encoding.lower() != "identity" for encoding in request.headers.getall("Content-Encoding", [])):
            raise Refused(415, "a compressed body is not supported")
        body = bytearray()
        while piece := await request.content.readany():
            count_body(len(piece))
            body += piece
            if len(body) > self._services.settings.body_bytes:
                raise Refused(413, f"the body exceeds {self._services.settings.body_bytes} bytes")
        held, services = list[float](), self._services
        captures = claims.captures and route.counted and route.api in (CHAT, MESSAGES)
        waiting, limit = waiting_for_turn(services, claims.key, held.append), services.settings.hold_seconds
        try:
            async with services.steps.parsing(claims.key, len(body), claims.turn, waiting, limit):
                return parse_request(
                    bytes(body),
                    route,
                    searches_tools=claims.refuses_tools,
                    captures=captures,
                ), sum(held)
        except InvalidBody as error:
            raise Refused(400, str(error)) from error
        except NotConvertible as error:
            await self._record_unconverted(claims, error)
            raise Refused(400, str(error)) from error
        except (TimeoutError, asyncio.CancelledError) as error:
            left = isinstance(error, asyncio.CancelledError)
            message = f"held for {sum(held):.0f} s{' until the agent left' * left}; the gateway parsed large bodies of other steps"
            if not held:
                message = "the client left before the gateway had parsed the request"
            if route.counted and (held or claims.key.role == "judge"):
                row = open_row(claims, route.provider, services.steps.last_model(claims.key), Spent(), time.time() - sum(held))
                await services.ledger.write(end_unparsed(row, sum(held), message, left=left))
            if left:
                raise
            raise Refused(HELD_TOO_LONG, message) from error

    async def _record_unconverted(self, claims: StepClaims, error: NotConvertible) -> None:
        """Record a request whose tokens cannot be recorded, unless the provider answered others of the trial. The agent may always
        send such requests, so the trial is configured wrongly."""
        ledger = self._services.ledger
        if not await ledger.answered(claims.key.uid):
            await ledger.write(refused_row(claims, "Configuration", 400, str(error), time.time(), model=error.model))

    async def _credential(self, claims: StepClaims, route: Route) -> Credential:
        credential = await self._services.credentials.get(claims.credential, self._services.settings.hold_seconds)
        if credential is None:
            raise Refused(425, "the step's credential is not registered yet; retry")
        if credential.provider != route.provider:
            raise Refused(403, f"the step's credential is for {credential.provider}, not for {route.provider}")
        return credential


def _wants_long_context(request: web.Request) -> bool:
    return any("context-1m" in beta for beta in request.headers.getall("anthropic-beta", []))
