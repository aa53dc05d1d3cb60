"""The operator's parts, put together: API client, queue, reconciler, and the HTTP endpoints."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress

from aiohttp import web

from .cluster.client import Client
from .metrics import Metrics
from .reconcile.reconciler import Reconciler
from .reconcile.sweep import Sweep
from .reconcile.workqueue import WorkQueue
from .settings import Settings
from .store import server
from .store.volume import Volume


class App:
    """Everything that runs while the operator does."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.volume = Volume(settings.results_dir, unpack_threads=settings.unpack_threads)
        self.queue: WorkQueue
        self._stack = AsyncExitStack()

    async def start(self) -> None:
        """Connect to the cluster and begin to work."""
        client = await self._stack.enter_async_context(await Client.connect(observe=self._count_request))
        reconciler = Reconciler(client, self.volume, self.settings, self.metrics)
        self.queue = WorkQueue(reconciler.reconcile, workers=self.settings.reconcile_workers)
        self.metrics.queue_depth.set_function(lambda: self.queue.depth)
        self.queue.start()
        self._stack.push_async_callback(self.queue.stop)
        sweep = asyncio.create_task(Sweep(client, self.volume, self.settings, self.metrics).run())
        self._stack.push_async_callback(_end, sweep)
        await self._serve()

    async def stop(self) -> None:
        """Let go of everything; trials go on when the operator is back."""
        await self._stack.aclose()

    async def _serve(self) -> None:
        app = web.Application()
        app.router.add_get("/healthz", _ok)
        app.router.add_get("/readyz", _ok)
        app.router.add_get("/metrics", self._metrics)
        server.add_routes(app, self.volume)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        self._stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, self.settings.http_host, self.settings.http_port).start()

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=self.metrics.render(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    def _count_request(self, verb: str, resource: str, code: int, seconds: float) -> None:
        self.metrics.requests.labels(verb, resource, str(code)).inc()
        self.metrics.request_seconds.labels(verb).observe(seconds)


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def _ok(_: web.Request) -> web.Response:
    return web.Response(text="ok\n")
