"""The operator's parts, put together: API client, queue, reconciler, and the HTTP endpoints."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

from aiohttp import web

from .cluster import pods
from .cluster.client import Client
from .cluster.gate import Gate
from .cluster.resources import PODS
from .errors import ClusterError
from .metrics import Metrics
from .reconcile.reconciler import Reconciler
from .reconcile.turns import Key
from .reconcile.workqueue import WorkQueue
from .settings import Settings
from .store import server
from .store.volume import Volume

logger = logging.getLogger(__name__)


class App:
    """Everything that runs while the operator does."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.volume = Volume(settings.results_dir, unpack_threads=settings.unpack_threads)
        self.queue: WorkQueue
        self.reconciler: Reconciler
        self._stack = AsyncExitStack()

    async def start(self) -> None:
        """Connect to the cluster and begin to work."""
        gate = Gate(waited=self.metrics.throttled_seconds.inc)
        client = await self._stack.enter_async_context(await Client.connect(gate=gate, observe=self._count_request))
        self.reconciler = Reconciler(client, self.volume, self.settings, self.metrics, wake=lambda key: self.queue.add(key))
        self.queue = WorkQueue(self.reconciler.reconcile, workers=self.settings.reconcile_workers)
        self._show(gate)
        await self._count_starting_pods(client)
        self.queue.start()
        self._stack.push_async_callback(self.queue.stop)
        await self._serve()

    def saw_pod(self, key: Key, pod: Mapping[str, Any], *, gone: bool) -> None:
        """News of a trial's pod: it is looked at, and perhaps others may start theirs now."""
        self.reconciler.starts.saw(key, pods.facts(pod), gone=gone)
        self.queue.add(key)

    async def stop(self) -> None:
        """Let go of everything; trials go on when the operator is back."""
        await self._stack.aclose()

    async def _count_starting_pods(self, client: Client) -> None:
        """Those that were asked for before we began count, too. Watching tells of them as well, only later."""
        selectors = {"label_selector": pods.SELECTOR, "field_selector": "status.phase=Pending"}
        namespaces: list[str | None] = [*self.settings.namespaces] or [None]
        try:
            found = [pod for each in namespaces for pod in await client.list_all(PODS, each, **selectors)]
            for pod in found:
                if (key := pods.trial_of(pod)) is not None:
                    self.reconciler.starts.saw(key, pods.facts(pod))
        except ClusterError as error:
            logger.warning("pods that are starting could not be counted yet: %s", error)

    def _show(self, gate: Gate) -> None:
        starts, execs, metrics = self.reconciler.starts, self.reconciler.execs, self.metrics
        metrics.queue_depth.set_function(lambda: self.queue.depth)
        metrics.pods_starting.set_function(lambda: starts.held)
        metrics.waiting.labels("pod").set_function(lambda: starts.waiting)
        metrics.waiting.labels("exec").set_function(lambda: execs.waiting)
        metrics.requests_allowed.set_function(lambda: gate.allowed)

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


async def _ok(_: web.Request) -> web.Response:
    return web.Response(text="ok\n")
