"""The operator's parts, put together: API clients, lease, queue, reconciler, and the HTTP endpoints."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from aiohttp import web

from .cluster import pods
from .cluster.client import Client
from .cluster.fence import Fenced
from .cluster.gate import Gate
from .cluster.lease import RENEWED, Lease, Replica
from .cluster.resources import PODS
from .cluster.shard import Shard
from .errors import ClusterError, MultistepError, NotLeading
from .health import Unwell, report
from .metrics import Metrics
from .reconcile.fetches import Fetches
from .reconcile.news import News
from .reconcile.orphans import OrphanRemoval
from .reconcile.reconciler import Reconciler
from .reconcile.relist import Relist
from .reconcile.sweep_tasks import SweepTasks
from .reconcile.sweeps import Sweeps
from .reconcile.turns import Key
from .reconcile.workqueue import WorkQueue
from .settings import Settings
from .sources.remote import Remote
from .store import server
from .store.bucket import Bucket
from .store.shipping import Shipping
from .store.volume import Volume
from .traces import Traces, exporter

logger = logging.getLogger(__name__)

LOST_LEASE_EXIT_CODE = 3
RELEASE_SECONDS = 3.0
SWEEP_WORKERS = 4
TRIAL_NEWS_SECONDS = 0.5  # in which the news of a sweep's trials make one look at it


class App:
    """Everything that runs while the operator does. end: ends the process at once, with an exit code."""

    def __init__(self, settings: Settings, *, end: Callable[[int], object] = os._exit) -> None:
        self.settings = settings
        self.shard = Shard(settings.shard, settings.namespaces)
        self.metrics = Metrics(settings)
        self.news = News()
        self.lease: Lease
        self._client: Client
        self.queue: WorkQueue
        self.sweeps: Sweeps
        self.sweep_queue: WorkQueue
        self.relist: Relist
        self.orphans: OrphanRemoval
        self.volume = Volume(settings.results_dir, unpack_threads=settings.unpack_threads, check=lambda: self.lease.check())
        self.shipping = _shipping(settings, self.volume, lambda: self.lease.check())
        self._end = end
        self.reconciler: Reconciler
        self.traces: Traces | None = None
        self._stack = AsyncExitStack()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._stopping = False

    async def start(self) -> None:
        """Connect to the cluster and stand by; work begins when the lease is won."""
        settings, stack = self.settings, self._stack
        gate = Gate(waited=self.metrics.throttled_seconds.inc)
        if (to := exporter(settings.otlp_endpoint)) is not None:
            self.traces = Traces(to, self.metrics)
        self._client = client = await stack.enter_async_context(await Client.connect(gate=gate, observe=self._count_request))
        self.lease = await self._make_lease()
        fenced = Fenced(client, self.lease.check)
        self.reconciler = Reconciler(
            fenced,
            self.volume,
            settings,
            self.metrics,
            wake=lambda key: self.queue.add(key),
            ended=self.traces.ended if self.traces else lambda _: None,
            shipping=self.shipping,
        )
        self.queue = WorkQueue(
            self.reconciler.reconcile,
            workers=settings.reconcile_workers,
            waited=self.metrics.queue_wait_seconds.observe,
            failed=self.metrics.failed,
        )
        self.sweeps = Sweeps(fenced, self.metrics, self._sweep_tasks(fenced), self.shard)
        self.sweep_queue = WorkQueue(self.sweeps.reconcile, workers=SWEEP_WORKERS, kind="sweep", failed=self.metrics.failed)
        self.orphans = OrphanRemoval(fenced, self.volume, settings, self.metrics, shipping=self.shipping)
        self.relist = Relist(client, self.news, self.heard_nothing, self.metrics, shard=self.shard)
        self._show(gate)
        self.metrics.leading.set_function(lambda: self.lease.held)
        self.metrics.phases.shown = self.metrics.sweeps.shown = lambda: self.lease.held
        await self._serve()
        stack.push_async_callback(self._release)
        stack.push_async_callback(self._end_tasks)
        stack.push_async_callback(self.reconciler.fetches.stop)
        stack.push_async_callback(self.sweeps.tasks.fetches.stop)
        stack.push_async_callback(self._stop_queues)
        if self.traces is not None:
            self._begin("traces", self.traces.run())
        self._begin("lease", self._keep_lease())
        self._begin("work", self._work())
        pause = partial(self.relist.pause_seconds, settings.relist_seconds)
        self._begin("relist", repeat("comparing lists with watches", pause, self.relist.compare))

    def look_at(self, key: Key, seconds: float = 0.0) -> None:
        """There is news of a trial; seconds: in which there may be more. A replica that stands by needs none: it looks at
        everything once it leads."""
        if self.lease.held:
            self.queue.add_within(key, seconds)

    def look_at_sweep(self, key: Key, seconds: float = 0.0) -> None:
        """There is news of a sweep; seconds: in which there may be more."""
        if self.lease.held:
            self.sweep_queue.add_within(key, seconds)

    def heard_nothing(self, kind: str, key: Key) -> None:
        """The watch missed this trial (or its pod), or this sweep, or it is looked at for the first time."""
        if kind == "sweep":
            return self.look_at_sweep(key)
        if kind == "trial":
            for sweep in self.sweeps.book.doubt(key[0]):
                self.look_at_sweep(sweep, TRIAL_NEWS_SECONDS)
        return self.look_at(key)

    def heard_of_trial(self, trial: Mapping[str, Any], type: str | None) -> None:
        """An event of a watch. The phase is what a replica knows that has not looked at the trial, right after it took over."""
        key = trial["metadata"]["namespace"], trial["metadata"]["name"]
        if type == "DELETED":
            self.metrics.phases.gone(key)
        else:
            self.metrics.phases.saw(key, (trial.get("status") or {}).get("phase"))
        if (sweep := self.sweeps.book.saw(trial, gone=type == "DELETED")) is not None:
            self.look_at_sweep(sweep, TRIAL_NEWS_SECONDS)
        if self.news.trial(trial, type):
            self.look_at(key)

    def heard_of_sweep(self, sweep: Mapping[str, Any], type: str | None) -> None:
        """An event of a watch."""
        key = sweep["metadata"]["namespace"], sweep["metadata"]["name"]
        if type == "DELETED":
            self.metrics.sweeps.gone(key)
        else:
            self.metrics.sweeps.saw(key, (sweep.get("status") or {}).get("phase"))
        if self.news.sweep(sweep, type):
            self.look_at_sweep(key)

    def heard_of_pod(self, pod: Mapping[str, Any], type: str | None) -> None:
        """An event of a watch. If it tells something, the trial is looked at, and perhaps others may start their pods now."""
        if (heard := self.news.pod(pod, type)) is not None:
            seconds = self.reconciler.heard_of_pod(heard, type)
            if seconds is not None and (type is None or not self.news.over(heard.key)):
                self.look_at(heard.key, seconds)

    async def stop(self) -> None:
        """Let go of everything, the newest first; trials go on with the next leader. A repetition does nothing."""
        self._stopping = True
        await self._stack.aclose()

    # -- leading

    async def _make_lease(self) -> Lease:
        """With a client of its own: neither a burst of requests nor a slow one may keep a renewal waiting."""
        settings = self.settings
        limit = RENEWED * settings.lease_seconds
        client = await Client.connect(timeout_seconds=limit, observe=self._count_request)
        await self._stack.enter_async_context(client)
        return Lease(
            client,
            Replica(settings.pod_name or socket.gethostname(), settings.pod_uid),
            namespace=settings.lease_namespace or client.namespace,
            name=settings.lease_name,
            seconds=settings.lease_seconds,
        )

    async def _keep_lease(self) -> None:
        try:
            await self.lease.keep()
        except NotLeading as error:
            logger.critical("%s any more: this process ends, and whatever it was at, at once", error)
            logging.shutdown()
            self._end(LOST_LEASE_EXIT_CODE)  # no orderly way out: threads that unpack would be waited for

    async def _work(self) -> None:
        await self.lease.won.wait()
        logger.info("%s leads; it runs %s", self.lease.replica, self.shard)
        await self._count_starting_pods(self._client)
        self.queue.start()
        self.sweep_queue.start()
        await insist("looking at every trial and sweep", self.relist.everything)
        self._begin("orphans", self.orphans.run())

    def _sweep_tasks(self, fenced: Fenced) -> SweepTasks:
        fetches = Fetches(self.settings, self.look_at_sweep, beside=self.reconciler.fetches)
        return SweepTasks(fenced, Remote(fetches, fenced.get_secret, self.settings.task_sources), fetches)

    async def _stop_queues(self) -> None:
        limit = self.settings.stop_seconds
        await asyncio.gather(self.queue.stop(within_seconds=limit), self.sweep_queue.stop(within_seconds=limit))

    async def _release(self) -> None:
        try:
            async with asyncio.timeout(RELEASE_SECONDS):
                await self.lease.release()
        except (ClusterError, TimeoutError) as error:
            logger.warning("the lease could not be released, it runs out by itself: %s", error)
        else:
            logger.info("%s stopped, and holds no lease", self.lease.replica)

    def _begin(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        task = self._tasks[name] = asyncio.create_task(work, name=name)
        task.add_done_callback(_log_failure)

    async def _end_tasks(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    # -- HTTP

    async def _count_starting_pods(self, client: Client) -> None:
        """Those that were asked for before we began count, too. Watching tells of them as well, only later."""
        selectors = {"label_selector": self.shard.selecting(pods.LABEL_TRIAL), "field_selector": "status.phase=Pending"}
        try:
            found = [pod for each in self.shard.places for pod in await client.list_all(PODS, each, **selectors)]
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
        metrics.waiting.labels("quota").set_function(lambda: self.reconciler.quotas.waiting)
        metrics.waiting.labels("exec").set_function(lambda: execs.waiting)
        metrics.requests_allowed.set_function(lambda: gate.allowed)

    async def _serve(self) -> None:
        app = web.Application()
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics)
        server.add_routes(app, self.volume, self.shipping)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=self.settings.stop_seconds)
        await runner.setup()
        self._stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, self.settings.http_host, self.settings.http_port).start()

    async def _healthz(self, _: web.Request) -> web.Response:
        return await report({"tasks": self._check_tasks, "watches": self._check_not_stalled})

    async def _readyz(self, _: web.Request) -> web.Response:
        return await report(
            {
                "api": self._check_api,
                "watches": self._check_watches,
                "results": self._check_results,
                "lease": self._check_lease,
                "shard": self._tell_shard,
            }
        )

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=self.metrics.render(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    async def _check_tasks(self) -> str:
        for name, task in self._tasks.items():
            if task.done() and not self._stopping and (task.cancelled() or task.exception()):
                raise Unwell(f"{name} ended, which it never should; see the log")
        return f"{', '.join(self._tasks)} alive"

    async def _check_not_stalled(self) -> str:
        if self.relist.stalled:
            raise Unwell(f"again and again, {self.relist.finding}")
        return "not stalled"

    async def _check_api(self) -> str:
        """Each replica asks for the lease, or renews it, several times in a lease's time."""
        silent = self.lease.silent_seconds
        if silent > self.settings.lease_seconds:
            raise Unwell(f"the API server did not answer: {self.lease.trouble}")
        return f"answered {silent:.1f} s ago"

    async def _check_watches(self) -> str:
        if self.relist.finding:
            raise Unwell(self.relist.finding)
        return "nothing missed"

    async def _check_results(self) -> str:
        await self.volume.try_to_write()
        return "writable"

    async def _check_lease(self) -> str:
        if self._stopping:
            raise Unwell("stopping")
        if self.lease.held:
            return f"held by this replica, {self.lease.replica}"
        if self.lease.won.is_set():
            raise Unwell("lost")
        return f"standing by; held by {self.lease.holder or 'nobody'}"

    async def _tell_shard(self) -> str:
        return str(self.shard)

    def _count_request(self, verb: str, resource: str, code: int, seconds: float) -> None:
        self.metrics.requests.labels(verb, resource, str(code)).inc()
        self.metrics.request_seconds.labels(verb).observe(seconds)


def _shipping(settings: Settings, volume: Volume, check: Callable[[], None]) -> Shipping | None:
    """To the object store that the settings name."""
    if not settings.results_store:
        return None
    return Shipping(Bucket.open(settings.results_store, settings.results_store_ca_file, check), volume)


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()):
        logger.critical("%s ended", task.get_name(), exc_info=error)


async def repeat(name: str, seconds: Callable[[], float], work: Callable[[], Awaitable[object]]) -> None:
    """Do something every so many seconds, more or less. What fails is logged, and done again when its time comes."""
    while True:
        await asyncio.sleep(seconds() * random.uniform(0.8, 1.2))
        await _attempt(name, work)


async def insist(name: str, work: Callable[[], Awaitable[object]], *, pause_seconds: float = 5.0) -> None:
    """Do something once, trying until it succeeds."""
    while True:
        if await _attempt(name, work):
            return
        await asyncio.sleep(pause_seconds)


async def _attempt(name: str, work: Callable[[], Awaitable[object]]) -> bool:
    try:
        await work()
        return True
    except MultistepError as error:
        logger.warning("%s: %s", name, error)
    except Exception:
        logger.exception("%s", name)
    return False
