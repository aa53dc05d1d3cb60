"""Connects the command line to the cluster, and reports an API server that does not answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp

from multistep.cli.terminal import print_err
from multistep.client.connection import open_client
from multistep.client.options import Target
from multistep.client.reconnecting_watch import WatchingClient

FIELD_MANAGER = "multistep-cli"
SILENCE_SECONDS = 2.0


@asynccontextmanager
async def connect(target: Target) -> AsyncIterator[WatchingClient]:
    """Connect to the cluster that the options or the kubeconfig select. Raises Unavailable if the kubeconfig is not usable."""
    async with await open_client(target, FIELD_MANAGER) as client, _silence_reported(client):
        yield client


@asynccontextmanager
async def _silence_reported(client: WatchingClient) -> AsyncIterator[None]:
    """If the first request has no answer after SILENCE_SECONDS, print once for which server the command waits. Retries of a request
    take up to two minutes."""
    timers: list[asyncio.TimerHandle] = []

    async def start(*_: object) -> None:
        if not timers:
            text = f"waiting for the API server {client.connection.base_url}"
            timers.append(asyncio.get_running_loop().call_later(SILENCE_SECONDS, print_err, text))

    async def stop(*_: object) -> None:
        for timer in timers:
            timer.cancel()

    trace = aiohttp.TraceConfig()
    trace.on_request_start.append(start)
    trace.on_request_end.append(stop)
    client.connection.session("api", trace=trace)
    try:
        yield
    finally:
        await stop()
