"""The port on which the operator registers credentials, and starts and ends steps' model access. /metrics needs no token."""

from __future__ import annotations

import hmac
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from typing import Final, get_args

from aiohttp import web
from pydantic import BaseModel, Field, ValidationError

from multistep.gateway.accounting.ledger_rows import RequestRow
from multistep.gateway.accounting.prices import TABLE
from multistep.gateway.accounting.step_usage import StepUsage, judge_failures, usage_of
from multistep.gateway.accounting.unanswered import unanswered
from multistep.gateway.http.ask_model import Question, ask_model
from multistep.gateway.http.request_types import GatewayServices
from multistep.gateway.keys.credentials import Credential
from multistep.gateway.keys.tokens import InvalidToken, Keyring, Role, StepKey, account_of, fingerprint, verify_token
from multistep.gateway.model_api.request_parsers import InvalidBody
from multistep.telemetry.metric_types import CONTENT_TYPE

_OPEN_PATH: Final = "/metrics"
MARGIN_SECONDS: Final = 10.0
"""When the operator closes a step, the gateway waits for the step's open requests for drain_seconds and this time."""
_MAX_TRACED: Final = 2000  # requests of a trial in its trace
_ABANDON_SECONDS: Final = 5.0  # time in which cancelled requests record their end
_NO_TLS: Final = "must start with https://, unless the chart's gateway.settings.plainUpstreams is true"
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Opening(BaseModel):
    """The body of the request that opens a step."""

    key: str
    """Id of the signing key of the step's token."""
    until: float
    """When the token expires, in seconds since the epoch."""
    fingerprint: str
    """Fingerprint of the signing key."""


class SweepWeights(BaseModel):
    """The body of the request that sets the weights of a sweep's agents."""

    version: str = Field(max_length=100)
    """Version with which the tokens of answers are stamped from now on."""
    paused: bool
    """Whether requests that are not sent yet are held."""


class OperatorPort:
    """The handlers of the operator's port."""

    def __init__(self, services: GatewayServices, keyring: Keyring, token: bytes) -> None:
        """Create the handlers. Each request except /metrics must carry ``token``, the operator's bearer token."""
        self._services = services
        self._keyring = keyring
        self._token = token
        self._started = time.monotonic()

    def app(self) -> web.Application:
        """Return the application with all routes."""
        app = web.Application(middlewares=[self._authenticated])
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/signing-keys", self._list_signing_keys)
        app.router.add_get("/models", self._models)
        app.router.add_get("/credentials", self._list_credentials)
        app.router.add_put("/credentials/{id}", self._register)
        app.router.add_put("/credentials/{id}/key", self._renew)
        app.router.add_put("/steps/{uid}/{attempt}/{step}/{role}/open", self._open)
        app.router.add_put("/steps/{uid}/{attempt}/{step}/{role}/close", self._close)
        app.router.add_get("/steps/{uid}/{attempt}/{step}/{role}/missed", self._missed)
        app.router.add_get("/steps/{uid}/{attempt}/{step}/{role}/capture", self._send_capture)
        app.router.add_delete("/steps/{uid}/{attempt}/{step}/{role}/capture", self._delete_capture)
        app.router.add_get("/trials/{uid}/requests", self._list_requests)
        app.router.add_put("/sweeps/{namespace}/{name}/{uid}/weights", self._set_weights)
        app.router.add_post("/ask", self._ask)
        return app

    @web.middleware
    async def _authenticated(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        given = request.headers.get("Authorization", "").encode(errors="surrogateescape")
        if request.path != _OPEN_PATH and not hmac.compare_digest(given, b"Bearer " + self._token):
            return _error(401, "the bearer token is missing or wrong")
        return await handler(request)

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=self._services.metrics.render(), headers={"Content-Type": CONTENT_TYPE})

    async def _list_signing_keys(self, _: web.Request) -> web.Response:
        return web.json_response({"accepted": list(self._keyring.secrets())})

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({name: load.model_dump() for name, load in self._services.loads.totals.items()})

    async def _list_credentials(self, _: web.Request) -> web.Response:
        credentials = self._services.credentials
        return web.json_response({"wanted": credentials.wanted, "rejected": dict(credentials.rejected)})

    async def _register(self, request: web.Request) -> web.Response:
        try:
            credential = Credential.model_validate_json(await request.read())
        except ValidationError as error:
            fields = sorted({".".join(map(str, problem["loc"])) or "body" for problem in error.errors(include_input=False)})
            return _error(400, f"invalid credential: {', '.join(fields)}")
        plain = credential.base_url is not None and not credential.base_url.startswith("https://")
        if plain and not self._services.settings.plain_upstreams:
            return _error(400, f"baseURL: {_NO_TLS}")
        self._services.credentials.register(request.match_info["id"], credential)
        return web.Response(status=204)

    async def _renew(self, request: web.Request) -> web.Response:
        """Replace a credential's key by the one that the operator read from its source. A key that is null or invalid changes
        nothing."""
        id_ = request.match_info["id"]
        key = (await request.json()).get("key")
        if not self._services.credentials.has(id_):
            return _error(404, "the credential is not registered")
        try:
            self._services.credentials.renew(id_, key)
        except ValidationError:
            self._services.credentials.renew(id_, None)
        return web.Response(status=204)

    async def _open(self, request: web.Request) -> web.Response:
        """Record that a step starts. The gateway needs this record to report which of the step's requests it missed. The call is
        idempotent."""
        step = _step(request)
        if time.monotonic() - self._started < self._services.settings.settle_seconds:
            return _error(503, "the gateway has just started, and not every node may reach it yet")
        if self._services.ledger.draining:
            return _error(503, "the gateway is stopping")
        try:
            opening = Opening.model_validate_json(await request.read())
        except ValidationError:
            return _error(400, "the body must have key, fingerprint (text) and until (number)")
        secret = self._keyring.secrets().get(opening.key)
        if secret is None:
            return _error(409, f"the signing key {opening.key} is not accepted")
        if opening.fingerprint != fingerprint(secret):  # the operator's or the gateway's copy of the Secret is out of date
            return _error(409, f"the signing key {opening.key} is another one here")
        await self._services.ledger.open_step(step, fingerprint(secret), opening.until)
        return web.Response(status=204)

    async def _missed(self, request: web.Request) -> web.Response:
        """Answer with the times since the step's start in which the gateway may not have answered its requests."""
        return web.json_response(await self._services.ledger.missed_by(_step(request), self._keyring.absences))

    async def _ask(self, request: web.Request) -> web.Response:
        """Send a request of the operator's to a model. The usage of its token's step has how it ended."""
        try:
            question = Question.model_validate_json(await request.read())
            sent = await ask_model(self._services, request, question, verify_token(question.token, self._keyring.secrets()))
        except (ValidationError, InvalidBody, InvalidToken) as error:
            return _error(400, f"invalid question: {type(error).__name__}")
        return web.Response(status=204) if sent else _error(503, "the question's path or credential is not known")

    async def _close(self, request: web.Request) -> web.Response:
        """Block the step's token, wait for the step's open requests, and answer with the step's usage. The call is idempotent."""
        step = _step(request)
        self._services.steps.close(step)
        self._services.silence.stop(step)
        await self._services.ledger.close_step(step)
        opened = await self._services.ledger.opened(step)
        if opened is not None:
            self._services.steps.close(step, opened.until)
        await self._services.steps.wait(step, self._services.settings.drain_seconds + MARGIN_SECONDS)
        rows = await self._services.ledger.rows_of(step)
        self._services.steps.abandon(step)
        if not rows:
            return _error(404, "the step sent no request that this gateway knows of")
        usage = await self._usage(step, rows)
        await self._services.steps.wait(step, _ABANDON_SECONDS)
        captured = await self._services.files.close(step, await self._services.ledger.rows_of(step))
        usage = usage.model_copy(update={"capture": captured})
        return web.json_response(usage.model_dump(mode="json", by_alias=True))

    async def _send_capture(self, request: web.Request) -> web.StreamResponse:
        """Answer with the token records of a closed step."""
        path = self._services.files.path(_step(request))
        return web.FileResponse(path) if path.exists() else _error(404, "the step has no token records")

    async def _delete_capture(self, request: web.Request) -> web.Response:
        self._services.files.delete(_step(request))
        return web.Response(status=204)

    async def _list_requests(self, request: web.Request) -> web.Response:
        """Answer with a trial's first finished requests, for its trace."""
        rows = await self._services.ledger.rows_of_trial(request.match_info["uid"], _MAX_TRACED)
        return web.json_response([asdict(row) for row in rows])

    async def _set_weights(self, request: web.Request) -> web.Response:
        """Set the weights of a sweep's agents. Answer with the number of their requests in flight. The call is idempotent."""
        try:
            wanted = SweepWeights.model_validate_json(await request.read())
        except ValidationError:
            return _error(400, "the body must have version, a text of at most 100 characters, and paused, true or false")
        names, weights = request.match_info, self._services.weights
        sweep = f"{names['namespace']}/{names['name']}/{names['uid']}"
        weights.set(sweep, wanted.version, paused=wanted.paused)
        return web.json_response({"inFlight": weights.in_flight(sweep)})

    async def _usage(self, step: StepKey, rows: Sequence[RequestRow]) -> StepUsage:
        services = self._services
        stalled = max(services.stalls.seconds(step), await services.ledger.stall(step))
        usage = usage_of(rows, TABLE, stalled, services.silence.seconds(step), services.silence.until(step))
        usage = judge_failures(usage, await services.ledger.answered(step.uid))
        if step.role == "judge":
            usage = usage.model_copy(update={"unanswered": unanswered(rows, await services.ledger.answered_contents(step))})
        refused = usage.last_failure is not None and usage.last_failure.kind == "Budget"
        if not refused and not any(each.cause == "Budget" for each in usage.unanswered):
            return usage
        by_step = await services.ledger.spent_by_step(account_of(step))
        return usage.model_copy(update={"spent": {"/".join(name.split("/")[1:3]): spent for name, spent in by_step.items()}})


def _error(status: int, text: str) -> web.Response:
    return web.json_response({"error": text}, status=status)


def _step(request: web.Request) -> StepKey:
    """Return the step that the path names. Raises HTTPBadRequest."""
    names = request.match_info
    if names["role"] not in get_args(Role):
        raise web.HTTPBadRequest(text=f"unknown role: {names['role']}")
    return StepKey(names["uid"], names["attempt"], names["step"], names["role"])
