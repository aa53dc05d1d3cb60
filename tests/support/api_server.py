"""A minimal HTTP server for tests of API server clients: tests define the routes; the server records the requests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web
from kubernetes.aio.client import Configuration

from multistep.kube.connection import Connection

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class ApiServer:
    """A running server. seen: method, path with query, Authorization header and body of every request, in order."""

    url: str = ""
    seen: list[tuple[str, str, str, str]] = field(default_factory=list)

    def connection(self) -> Connection:
        return Connection(Configuration(host=self.url), loader=None, namespace="default")


@asynccontextmanager
async def serve(handler: Handler) -> AsyncIterator[ApiServer]:
    """Serve HTTP on loopback and yield the server; `handler` answers every request."""
    server = ApiServer()

    async def keep(request: web.Request) -> web.StreamResponse:
        body = "" if request.headers.get("Upgrade") else await request.text()
        server.seen.append((request.method, request.path_qs, request.headers.get("Authorization", ""), body))
        return await handler(request)

    app = web.Application(client_max_size=2**30)
    app.router.add_route("*", "/{path:.*}", keep)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        server.url = f"http://{host}:{port}"
        yield server
    finally:
        await runner.cleanup()
