"""A client of an API server that returns prepared responses."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from multistep.client.reconnecting_watch import WatchingClient
from multistep.kube.client import FIELD_MANAGER
from multistep.kube.requests import ApiRequests
from tests.support.api_server import ApiServer, serve

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "ns"}}


@asynccontextmanager
async def client_of(
    *answers: Answer | Any, field_manager: str = FIELD_MANAGER, **options: Any
) -> AsyncIterator[tuple[WatchingClient, ApiServer]]:
    """Run a client of a server that returns these responses in order, and then repeats the last one."""
    left = list(answers)

    async def handle(request: web.Request) -> web.StreamResponse:
        answer = left.pop(0) if len(left) > 1 else left[0]
        if not callable(answer):
            return web.json_response(answer)
        response = await answer(request)
        assert isinstance(response, web.StreamResponse)
        return response

    async with (
        serve(handle) as server,
        WatchingClient(ApiRequests(server.connection(), **options), field_manager=field_manager) as client,
    ):
        yield client, server


def status(code: int, reason: str = "", message: str = "because", **headers: str) -> Answer:
    async def answer(_request: web.Request) -> web.StreamResponse:
        reported = {"kind": "Status", "reason": reason, "message": message}
        return web.json_response(reported, status=code, headers={k.replace("_", "-"): v for k, v in headers.items()})

    return answer


def page(names: list[str], more: str = "") -> dict[str, Any]:
    items = [{"metadata": {"name": name, "uid": name, "resourceVersion": "1"}} for name in names]
    return {"metadata": {"resourceVersion": "9", "continue": more}, "items": items}
