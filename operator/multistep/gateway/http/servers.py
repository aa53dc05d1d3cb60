"""Runs the gateway process, which has three HTTP servers and the services that their handlers share."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aiohttp import ClientSession, ClientTimeout, DummyCookieJar, TCPConnector, web

from multistep.gateway.accounting.budgets import Budgets
from multistep.gateway.accounting.open_steps import OpenSteps
from multistep.gateway.accounting.request_ledger import RETENTION_SECONDS, RequestLedger
from multistep.gateway.accounting.waiting_seconds import Silence, Stalls
from multistep.gateway.capture.record_limits import RecordLimits
from multistep.gateway.capture.step_files import StepFiles
from multistep.gateway.capture.weights import Weights, staleness
from multistep.gateway.http.agent_port import AgentPort
from multistep.gateway.http.answer_forms import ServerForms
from multistep.gateway.http.gateway_metrics import GatewayMetrics
from multistep.gateway.http.limit_connections import listen
from multistep.gateway.http.operator_port import OperatorPort
from multistep.gateway.http.request_types import GatewayServices
from multistep.gateway.keys.credentials import Credentials
from multistep.gateway.keys.tokens import LONGEST_SECONDS, Keyring
from multistep.gateway.model_api.answer_memory import AnswerMemory
from multistep.gateway.model_api.routes import STALLS_PATH
from multistep.gateway.pace import AnswerCounts, Lanes
from multistep.gateway.settings import GatewaySettings

MIN_TOKEN_BYTES: Final = 32
_BEAT_SECONDS: Final = 5.0  # interval of RequestLedger.beat, and the time by which a recorded downtime may start too early
_FORGET_SECONDS: Final = 86400.0  # interval of RequestLedger.forget, which reads the whole ledger
_SHRINK_SECONDS: Final = 600.0  # interval at which the memory of ended steps is freed
_CONNECT_SECONDS: Final = 10.0
# Shorter than providers' idle timeouts, so that providers seldom close a connection while it is used again.
_KEEPALIVE_SECONDS: Final = 15.0
_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True)
class GatewayPorts:
    """The ports on which the gateway listens."""

    port: int
    admin_port: int
    probe_port: int


@asynccontextmanager
async def running_gateway(settings: GatewaySettings, damaged: Callable[[], object] = lambda: None) -> AsyncIterator[GatewayPorts]:
    """Run the gateway inside the context. On exit, open requests have ``stop_seconds`` to finish.

    If the ledger is damaged, ``damaged`` is called from any thread. The process must then end, so that the next one starts a new
    ledger.
    """
    keyring = Keyring(settings.signing_keys_dir)
    token = settings.admin_token_file.read_bytes().strip()
    if len(token) < MIN_TOKEN_BYTES:
        raise ValueError(f"{settings.admin_token_file}: the token has fewer than {MIN_TOKEN_BYTES} bytes")
    async with AsyncExitStack() as stack:
        services = await _services(settings, stack, damaged)
        public = web.Application()
        handlers = AgentPort(services, keyring)
        public.router.add_get(STALLS_PATH, handlers.stalls)
        public.router.add_route("*", "/{path:.*}", handlers.handle)
        admin_port = await _listen(stack, OperatorPort(services, keyring, token).app(), settings, settings.admin_port)
        stack.push_async_callback(services.steps.wait_all, settings.stop_seconds)
        port = await _listen(stack, public, settings, settings.port)
        for work in (_forget(services), _shrink(services), _beat(services.ledger)):
            stack.callback(asyncio.create_task(work).cancel)
        stack.callback(services.ledger.drain)  # runs first on exit, because the downtime starts when agents can no longer connect
        yield GatewayPorts(port, admin_port, await _listen(stack, _probes(), settings, settings.probe_port))


def _probes() -> web.Application:
    """Return the application for the kubelet's probes. It gets a port of its own, so that agents cannot use up its connections."""

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok")

    app = web.Application()
    app.router.add_get("/healthz", healthz)
    return app


async def _beat(ledger: RequestLedger) -> None:
    while True:
        try:
            await ledger.beat()
        except sqlite3.Error as error:  # e.g. the disk is full, which may be temporary
            _log.error("cannot record that the gateway runs: %s", error)
        await asyncio.sleep(_BEAT_SECONDS)


async def _forget(services: GatewayServices) -> None:
    while True:
        await asyncio.sleep(_FORGET_SECONDS)
        try:
            services.files.forget(time.time() - 2 * LONGEST_SECONDS)
            await services.ledger.forget(time.time() - RETENTION_SECONDS)
        except (sqlite3.Error, OSError) as error:
            _log.error("cannot delete old rows of the ledger: %s", error)


async def _shrink(services: GatewayServices) -> None:
    while True:
        await asyncio.sleep(_SHRINK_SECONDS)
        services.stalls.forget(services.steps.is_closed)
        services.steps.forget()
        services.credentials.forget()


async def _services(settings: GatewaySettings, stack: AsyncExitStack, damaged: Callable[[], object]) -> GatewayServices:
    ledger = await asyncio.to_thread(RequestLedger, settings.ledger_file, damaged)
    stack.push_async_callback(asyncio.to_thread, ledger.stop)
    lanes = Lanes(settings.lane_requests)
    limits = RecordLimits(settings.capture_step_bytes, settings.capture_sweep_bytes)
    metrics = GatewayMetrics(lanes, settings.metrics_label_sets, lambda: _free_bytes(settings.ledger_file.parent))
    weights = Weights(settings.ledger_file.parent / "weights.json")

    def step_ended(sweep: str, tokens: Mapping[str, int]) -> None:
        metrics.count_step(staleness(weights.version(sweep), tokens))

    files = StepFiles(settings.ledger_file.parent / "capture", limits, ledger, step_ended)
    timeout = ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS, sock_read=settings.answer_timeout_seconds)
    http = await stack.enter_async_context(
        ClientSession(
            connector=TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_SECONDS),
            timeout=timeout,
            cookie_jar=DummyCookieJar(),
            auto_decompress=False,
            trust_env=True,  # uses HTTPS_PROXY, if set
        )
    )
    return GatewayServices(
        settings=settings,
        ledger=ledger,
        budgets=Budgets(ledger.spent),
        lanes=lanes,
        credentials=Credentials(),
        steps=OpenSteps(await ledger.closed_steps(), settings.body_bytes),
        metrics=metrics,
        loads=AnswerCounts(),
        stalls=Stalls(ledger, await ledger.stalls()),
        silence=Silence(),
        answers=AnswerMemory(),
        files=files,
        weights=weights,
        forms=ServerForms(http),
        http=http,
    )


def _free_bytes(directory: Path) -> int:
    volume = os.statvfs(directory)
    return volume.f_bavail * volume.f_frsize


async def _listen(stack: AsyncExitStack, app: web.Application, settings: GatewaySettings, port: int) -> int:
    """Start a server and return its port. The server does not decompress bodies, and cancels handlers of disconnected clients."""
    runner = web.AppRunner(
        app,
        access_log=None,
        handler_cancellation=True,
        auto_decompress=False,
        shutdown_timeout=settings.stop_seconds,
        keepalive_timeout=_KEEPALIVE_SECONDS,
    )
    return await listen(stack, runner, settings.listen_host, port)


async def serve(settings: GatewaySettings) -> None:
    """Run the gateway until SIGTERM or SIGINT."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    async with running_gateway(settings, lambda: loop.call_soon_threadsafe(stopping.set)) as ports:
        _log.info("listening on ports %d (agents) and %d (operator)", ports.port, ports.admin_port)
        await stopping.wait()
        _log.info("stopping: open requests have %g s to finish", settings.stop_seconds)
