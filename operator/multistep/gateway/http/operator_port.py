"""Admin port, on which the operator registers credentials and ends steps' model access. /metrics needs no token."""

from __future__ import annotations

import hmac
import time
from collections.abc import Awaitable, Callable, Collection
from typing import Final, get_args

from aiohttp import web
from pydantic import BaseModel, ValidationError

from multistep.gateway.accounting.ledger_rows import Spent
from multistep.gateway.accounting.step_usage import LastFailure, usage_of
from multistep.gateway.accounting.upper_bounds import TABLE
from multistep.gateway.http.request_types import GatewayServices
from multistep.gateway.keys.credentials import Credential
from multistep.gateway.keys.tokens import Keyring, Role, StepKey, fingerprint
from multistep.telemetry.metric_types import CONTENT_TYPE

_OPEN_PATH: Final = "/metrics"
MARGIN_SECONDS: Final = 10.0
"""How much longer than drain_seconds an answer about a step waits for the step's open requests."""
_NO_TLS: Final = "must start with https://, unless the chart's gateway.settings.plainUpstreams is true"
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Opening(BaseModel):
    """The body of the request that opens a step."""

    key: str
    """Id of the key that signs the step's token."""
    until: float
    """When the token expires, in seconds since the epoch."""
    fingerprint: str
    """Fingerprint of the key."""


class OperatorPort:
    """The handlers of the admin port. token: the operator's bearer token."""

    def __init__(self, services: GatewayServices, keyring: Keyring, token: bytes) -> None:
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
        return app

    @web.middleware
    async def _authenticated(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        given = request.headers.get("Authorization", "").encode(errors="surrogateescape")
        if request.path != _OPEN_PATH and not hmac.compare_digest(given, b"Bearer " + self._token):
            return web.json_response({"error": "the bearer token is missing or wrong"}, status=401)
        return await handler(request)

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=self._services.metrics.render(), headers={"Content-Type": CONTENT_TYPE})

    async def _list_signing_keys(self, _: web.Request) -> web.Response:
        return web.json_response({"accepted": list(self._keyring.secrets())})

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({name: load.model_dump() for name, load in self._services.loads.totals.items()})

    async def _list_credentials(self, _: web.Request) -> web.Response:
        credentials = self._services.credentials
        lists = {"registered": credentials.registered, "wanted": credentials.wanted}
        return web.json_response({**lists, "rejected": dict(credentials.rejected)})

    async def _register(self, request: web.Request) -> web.Response:
        try:
            credential = Credential.model_validate_json(await request.read())
        except ValidationError as error:
            fields = sorted({".".join(map(str, problem["loc"])) or "body" for problem in error.errors(include_input=False)})
            return web.json_response({"error": f"invalid credential: {', '.join(fields)}"}, status=400)
        plain = credential.base_url is not None and not credential.base_url.startswith("https://")
        if plain and not self._services.settings.plain_upstreams:
            return web.json_response({"error": f"baseURL: {_NO_TLS}"}, status=400)
        self._services.credentials.register(request.match_info["id"], credential)
        return web.Response(status=204)

    async def _renew(self, request: web.Request) -> web.Response:
        """Take the key that the credential's source has now; a key that is null or invalid leaves the former one in use."""
        id_, key = request.match_info["id"], (await request.json()).get("key")
        if id_ not in self._services.credentials.registered:
            return web.json_response({"error": "the credential is not registered"}, status=404)
        try:
            self._services.credentials.renew(id_, key)
        except ValidationError:
            self._services.credentials.renew(id_, None)
        return web.Response(status=204)

    async def _open(self, request: web.Request) -> web.Response:
        """Record that a step starts. A gateway without this record cannot know which requests it missed. Idempotent."""
        step = _step(request)
        if time.monotonic() - self._started < self._services.settings.settle_seconds:
            return web.json_response({"error": "the gateway has just started, and not every node may reach it yet"}, status=503)
        if self._services.ledger.draining:
            return web.json_response({"error": "the gateway is stopping"}, status=503)
        try:
            opening = Opening.model_validate_json(await request.read())
        except ValidationError:
            return web.json_response({"error": "the body must have key, fingerprint (text) and until (number)"}, status=400)
        if (secret := self._keyring.secrets().get(opening.key)) is None:
            return web.json_response({"error": f"the signing key {opening.key} is not accepted"}, status=409)
        if opening.fingerprint != fingerprint(secret):  # one of the two copies of the Secret is older
            return web.json_response({"error": f"the signing key {opening.key} is another one here"}, status=409)
        await self._services.ledger.open_step(step, fingerprint(secret), opening.until)
        return web.Response(status=204)

    async def _missed(self, request: web.Request) -> web.Response:
        """Return the times since the step's start in which its requests may not have been answered."""
        return web.json_response(await self._services.ledger.missed_by(_step(request), self._keyring.absences))

    async def _close(self, request: web.Request) -> web.Response:
        """Block the step's token, wait for the step's open requests, and return the step's usage. Idempotent."""
        step = _step(request)
        self._services.steps.close(step)
        self._services.silence.stop(step)
        await self._services.ledger.close_step(step)
        if (opened := await self._services.ledger.opened(step)) is not None:
            self._services.steps.close(step, opened.until)
        await self._services.steps.wait(step, self._services.settings.drain_seconds + MARGIN_SECONDS)
        rows = await self._services.ledger.rows_of(step)
        self._services.steps.abandon(step)
        if not rows:
            return web.json_response({"error": "the step sent no request that this gateway knows of"}, status=404)
        services = self._services
        stalled = max(services.stalls.seconds(step), await services.ledger.stall(step))
        usage = usage_of(rows, TABLE, stalled, services.silence.seconds(step), services.silence.until(step))
        answered = await services.ledger.answered(step.uid)
        last, fault = _judged(usage.last_failure, answered), _judged(usage.fault, answered)
        failures = {model: failure for model, failure in usage.failures.items() if _judged(failure, answered) is not None}
        spent = await self._spent(step.uid) if last is not None and last.kind == "Budget" else {}
        usage = usage.model_copy(update={"last_failure": last, "fault": fault, "failures": failures, "spent": spent})
        return web.json_response(usage.model_dump(mode="json", by_alias=True))

    async def _spent(self, uid: str) -> dict[str, Spent]:
        """Return what each step of a trial used, by ATTEMPT/STEP."""
        by_step = await self._services.ledger.spent_by_step(uid)
        return {"/".join(name.split("/")[1:3]): spent for name, spent in by_step.items()}


def _step(request: web.Request) -> StepKey:
    """Return the step that the path names. Raises HTTPBadRequest."""
    names = request.match_info
    if names["role"] not in get_args(Role):
        raise web.HTTPBadRequest(text=f"unknown role: {names['role']}")
    return StepKey(names["uid"], names["attempt"], names["step"], names["role"])


def _judged(failure: LastFailure | None, answered: Collection[str]) -> LastFailure | None:
    """Return a failure as the trial's other requests show it; None if the agent's request caused it.

    answered: the models for which the provider answered a request of the trial. If it answered any, the agent knows the gateway's
    paths, and a request that its budget can bound.
    """
    if failure is None:
        return None
    works = failure.model in answered
    if failure.kind == "Path" and answered:
        return None
    kind = "Budget" if failure.kind == "Unbounded" and works else failure.kind
    return failure.model_copy(update={"answered": works, "kind": kind})
