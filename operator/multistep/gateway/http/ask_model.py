"""Sends a request of the operator's own to a model, in order to find out whether its provider answers at all.

The request takes the way of all requests: it is queued and sent again, and the ledger has its end and its usage.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from aiohttp import web
from pydantic import BaseModel

from multistep.gateway.http.client_connection import ClientConnection
from multistep.gateway.http.model_request import Exchange
from multistep.gateway.http.request_types import AllowedRequest, GatewayServices
from multistep.gateway.keys.tokens import StepClaims
from multistep.gateway.model_api.error_answers import Refused
from multistep.gateway.model_api.request_parsers import parse_request
from multistep.gateway.model_api.routes import find_route

ANSWER_SECONDS: Final = 30.0
"""How long the gateway waits for the answer. A provider that needs more for a few words does not answer."""


class Question(BaseModel):
    """The body of the operator's request."""

    token: str
    """A token of the step whose usage has the request's."""
    path: str
    """Path at the gateway, as agents request it."""
    body: Mapping[str, Any]
    """The request to the model, which must not be streamed."""


async def ask_model(services: GatewayServices, request: web.Request, question: Question, claims: StepClaims) -> bool:
    """Send the question and wait for its end. Return whether it was sent, or at least queued. Raises InvalidBody.

    Do nothing if the step is closed: an operator that has restarted repeats its question. request: the operator's, which has the
    method and the headers.
    """
    if services.steps.is_closed(claims.key):
        return True
    route = find_route(request.method, question.path)
    credential = await services.credentials.get(claims.credential, ANSWER_SECONDS)
    if route is None or credential is None:
        return False
    allowed = AllowedRequest(claims, route, parse_request(json.dumps(question.body).encode(), route), credential)
    with services.steps.open_request(claims.key), suppress(Refused, TimeoutError):
        async with asyncio.timeout(ANSWER_SECONDS):
            await Exchange(services, ClientConnection(request, relays=False), allowed).run()
    return True
