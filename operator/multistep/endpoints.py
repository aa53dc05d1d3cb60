"""The operator's HTTP server: probes, metrics and results."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from aiohttp import web

from .health import Health
from .metrics import Metrics
from .settings import Settings
from .store import server
from .store.shipping import Shipping
from .store.volume import Volume

PROMETHEUS: Final = "text/plain; version=0.0.4; charset=utf-8"


class Endpoints:
    """What answers to requests."""

    def __init__(self, health: Health, metrics: Metrics, volume: Volume, shipping: Shipping | None) -> None:
        self._health = health
        self._metrics = metrics
        self._volume = volume
        self._shipping = shipping

    @asynccontextmanager
    async def served(self, settings: Settings) -> AsyncIterator[None]:
        """Listen while in the context; at its end, requests have ``stop_seconds`` to finish."""
        runner = web.AppRunner(self._routes(), access_log=None, shutdown_timeout=settings.stop_seconds)
        await runner.setup()
        try:
            await web.TCPSite(runner, settings.http_host, settings.http_port).start()
            yield
        finally:
            await runner.cleanup()

    def _routes(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._render_metrics)
        server.add_routes(app, self._volume, self._shipping)
        return app

    async def _healthz(self, _: web.Request) -> web.Response:
        return _answer(*await self._health.live())

    async def _readyz(self, _: web.Request) -> web.Response:
        return _answer(*await self._health.ready())

    async def _render_metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=self._metrics.render(), headers={"Content-Type": PROMETHEUS})


def _answer(well: bool, text: str) -> web.Response:
    return web.Response(text=text, status=200 if well else 503)
