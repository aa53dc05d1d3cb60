"""The operator's HTTP servers: results on one port; metrics and probes on another.

The results port is open to the whole cluster, also to agents; a token per trial protects its results. A NetworkPolicy restricts the
metrics port.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from aiohttp import web

from multistep.app.health import Health
from multistep.gateway.http.head_limits import listen
from multistep.settings import Settings
from multistep.store import results_server as server
from multistep.store.bucket.upload_results import Shipping
from multistep.store.volume.results_volume import Volume
from multistep.telemetry.metric_types import CONTENT_TYPE
from multistep.telemetry.metrics import Metrics


class Endpoints:
    """The results server and the metrics server. public_key: public part (PEM) of the key that signs evidence, None without one."""

    def __init__(
        self, health: Health, metrics: Metrics, volume: Volume, shipping: Shipping | None, *, public_key: bytes | None = None
    ) -> None:
        self._public_key = public_key
        self._health = health
        self._metrics = metrics
        self._volume = volume
        self._shipping = shipping

    @asynccontextmanager
    async def served(self, settings: Settings) -> AsyncIterator[None]:
        """Listen on both ports inside the context; on exit, active requests have ``stop_seconds`` to finish."""
        async with AsyncExitStack() as stack:
            for app, port in ((self._for_metrics(), settings.metrics_port), (self._for_results(), settings.results_port)):
                runner = web.AppRunner(app, access_log=None, shutdown_timeout=settings.stop_seconds)
                await listen(stack, runner, settings.listen_host, port)
            yield

    def _for_metrics(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._render_metrics)
        return app

    def _for_results(self) -> web.Application:
        app = web.Application()
        server.add_routes(app, self._volume, self._shipping, public_key=self._public_key)
        return app

    async def _healthz(self, _: web.Request) -> web.Response:
        return _answer(*await self._health.live())

    async def _readyz(self, _: web.Request) -> web.Response:
        return _answer(*await self._health.ready())

    async def _render_metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=self._metrics.render(), headers={"Content-Type": CONTENT_TYPE})


def _answer(well: bool, text: str) -> web.Response:
    return web.Response(text=text, status=200 if well else 503)
