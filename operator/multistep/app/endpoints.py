"""The operator's HTTP servers. One port serves results, another one metrics and probes.

The results port is open to the whole cluster, also to agents. A token for each trial protects its results. A NetworkPolicy
restricts the metrics port.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from aiohttp import web

from multistep.app.background_tasks import BackgroundTasks
from multistep.errors import MultistepError
from multistep.gateway.http.limit_connections import listen
from multistep.kube.lease import Lease
from multistep.kube.shard import Shard
from multistep.reconcile.cluster.resync import Resync
from multistep.settings import Settings
from multistep.store import results_server
from multistep.store.bucket.upload_results import ResultsUploader
from multistep.store.history import History
from multistep.store.results_volume import ResultsVolume
from multistep.telemetry.metric_types import CONTENT_TYPE
from multistep.telemetry.metrics import Metrics

CHECK_SECONDS: Final = 3.0

Check = Callable[[], Awaitable[str]]  # returns text for the report, or raises CheckFailed or another MultistepError


class CheckFailed(MultistepError):
    """A check failed. The message is the reason."""


class Health:
    """The checks of /healthz and /readyz. If /healthz fails, the kubelet restarts the operator."""

    def __init__(
        self,
        tasks: BackgroundTasks,
        lease: Lease,
        resync: Resync,
        volume: ResultsVolume,
        shard: Shard,
        *,
        lease_seconds: float,
        stopping: Callable[[], bool],
    ) -> None:
        self._tasks = tasks
        self._lease = lease
        self._resync = resync
        self._volume = volume
        self._shard = shard
        self._lease_seconds = lease_seconds
        self._stopping = stopping

    async def live(self) -> tuple[bool, str]:
        """Return whether /healthz succeeds, and the text of its answer."""
        return await run_checks({"tasks": self._check_tasks, "watches": self._check_not_stalled})

    async def ready(self) -> tuple[bool, str]:
        """Return whether /readyz succeeds, and the text of its answer."""
        return await run_checks(
            {
                "api": self._check_api,
                "watches": self._check_watches,
                "results": self._check_results,
                "lease": self._check_lease,
                "shard": self._check_shard,
            }
        )

    async def _check_tasks(self) -> str:
        if not self._stopping() and (name := self._tasks.failed) is not None:
            raise CheckFailed(f"the background task {name} ended unexpectedly; see the log")
        return f"{', '.join(self._tasks.names)} running"

    async def _check_not_stalled(self) -> str:
        if self._resync.stalled:
            raise CheckFailed(f"repeatedly: {self._resync.finding}")
        return "not stalled"

    async def _check_api(self) -> str:
        """Fail if the API server has not answered for longer than a lease duration. Every replica reads or renews the lease more
        often than that."""
        silent = self._lease.seconds_since_answer
        if silent > self._lease_seconds:
            raise CheckFailed(f"the API server did not answer: {self._lease.last_error}")
        return f"answered {silent:.1f} s ago"

    async def _check_watches(self) -> str:
        """Fail only if watches stall repeatedly. A single stall is harmless, because the periodic resync finds missed events. While
        this check fails, the operator is not ready, so it serves no results."""
        await self._check_not_stalled()
        return self._resync.finding or "nothing missed"

    async def _check_results(self) -> str:
        await self._volume.disk.try_to_write()
        return "writable"

    async def _check_lease(self) -> str:
        if self._stopping():
            raise CheckFailed("stopping")
        if self._lease.held:
            return f"held by this replica, {self._lease.replica}"
        if self._lease.acquired.is_set():
            raise CheckFailed("lost")
        return f"standby; held by {self._lease.holder or 'no replica'}"

    async def _check_shard(self) -> str:
        return str(self._shard)


async def run_checks(checks: Mapping[str, Check]) -> tuple[bool, str]:
    """Return whether all checks pass, and a text with a line for each check."""
    outcomes = [await _outcome(name, check) for name, check in checks.items()]
    well = all(ok for ok, _ in outcomes)
    lines = [line for _, line in outcomes] + ["ok" if well else "not ok"]
    return well, "".join(f"{line}\n" for line in lines)


async def _outcome(name: str, check: Check) -> tuple[bool, str]:
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            return True, f"[+] {name}: {await check()}"
    except MultistepError as error:
        return False, f"[-] {name}: {' '.join(str(error).split())}"
    except TimeoutError:
        return False, f"[-] {name}: no answer within {CHECK_SECONDS:g} s"


class Endpoints:
    """The results server and the metrics server. ``public_key`` is the public part (PEM) of the key that signs evidence, if any."""

    def __init__(
        self,
        health: Health,
        metrics: Metrics,
        volume: ResultsVolume,
        shipping: ResultsUploader | None,
        history: History | None = None,
        *,
        public_key: bytes | None = None,
    ) -> None:
        self._public_key = public_key
        self._health = health
        self._metrics = metrics
        self._volume = volume
        self._shipping = shipping
        self._history = history

    @asynccontextmanager
    async def served(self, settings: Settings) -> AsyncIterator[None]:
        """Return a context in which both ports are served. On exit, active requests have ``stop_seconds`` to finish."""
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
        results_server.add_routes(app, self._volume, self._shipping, self._history, public_key=self._public_key)
        return app

    async def _healthz(self, _: web.Request) -> web.Response:
        return _answer(*await self._health.live())

    async def _readyz(self, _: web.Request) -> web.Response:
        return _answer(*await self._health.ready())

    async def _render_metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=self._metrics.render(), headers={"Content-Type": CONTENT_TYPE})


def _answer(well: bool, text: str) -> web.Response:
    return web.Response(text=text, status=200 if well else 503)
