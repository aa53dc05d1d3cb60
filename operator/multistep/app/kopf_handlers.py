"""Connects the operator to kopf, the library that watches objects. Watch events enqueue the keys of objects to reconcile."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
from collections.abc import Callable, Mapping
from contextvars import Context
from typing import Any, cast

import kopf
import uvloop

from multistep.api.common.base_model import GROUP, VERSION
from multistep.api.sweep.sweep import SWEEP_PLURAL
from multistep.api.trial.trial import PLURAL
from multistep.app.operator import App
from multistep.kube.list_objects import PAGE_OBJECTS
from multistep.logs import set_up
from multistep.pods import pod_identity
from multistep.reconcile.cluster.resync import WATCH_TIMEOUT_SECONDS
from multistep.settings import Settings

logger = logging.getLogger(__name__)


def register(registry: kopf.OperatorRegistry, settings: Settings) -> App:
    """Register all handlers and return the operator, which starts together with kopf."""
    app = App(settings)

    @kopf.on.startup(registry=registry)
    async def start(settings: kopf.OperatorSettings, **_: Any) -> None:
        settings.posting.enabled = False  # the operator emits its Events itself
        settings.scanning.disabled = True  # the resources are known, so the operator needs no access to CRDs
        settings.watching.server_timeout = 300  # maximum seconds of a watch, also of a stalled one
        settings.watching.client_timeout = WATCH_TIMEOUT_SECONDS
        settings.watching.chunk_size = PAGE_OBJECTS
        settings.watching.label_selectors[GROUP, kopf.EVERYTHING] = app.shard.selector
        settings.watching.label_selectors["v1", "pods"] = app.shard.selecting(pod_identity.LABEL_TRIAL)
        settings.queueing.idle_timeout = 1.0  # seconds for which kopf keeps an object in memory after its last event
        settings.persistence.diffbase_storage = NoDiffs()
        await app.start()

    @kopf.on.cleanup(registry=registry)
    async def stop(**_: Any) -> None:
        await app.stop()

    @kopf.on.event(GROUP, VERSION, PLURAL, registry=registry)
    async def trial_changed(body: kopf.Body, type: str | None, **_: Any) -> None:
        _apart(app.events.trial_event, body, type)

    @kopf.on.event(GROUP, VERSION, SWEEP_PLURAL, registry=registry)
    async def sweep_changed(body: kopf.Body, type: str | None, **_: Any) -> None:
        _apart(app.events.sweep_event, body, type)

    @kopf.on.event("v1", "pods", registry=registry)
    async def pod_changed(body: kopf.Body, type: str | None, **_: Any) -> None:
        _apart(app.events.pod_event, body, type)

    return app


def _apart(handle: Callable[[Mapping[str, Any], str | None], None], body: kopf.Body, event: str | None) -> None:
    """Handle an event in an empty context. Otherwise the timers and tasks that it starts would keep kopf's context, which has the
    whole object, in memory until the trial ends."""
    Context().run(handle, body, event)


class NoDiffs(kopf.DiffBaseStorage):
    """A diff storage that stores nothing. The event handlers need no diffs, for which kopf would copy each object."""

    def build(self, **_: Any) -> kopf.BodyEssence:
        return cast(kopf.BodyEssence, {})

    def fetch(self, **_: Any) -> kopf.BodyEssence | None:
        return None

    def store(self, **_: Any) -> None:
        """Do nothing, because ``fetch`` never returns a diff base."""


async def operate(settings: Settings) -> None:
    """Run the operator until SIGINT or SIGTERM."""
    registry, ours = kopf.get_default_registry(), asyncio.all_tasks()
    app, stop = register(registry, settings), asyncio.Event()
    tasks = await kopf.spawn_tasks(
        registry=registry,
        standalone=True,
        namespaces=settings.namespaces,
        clusterwide=not settings.namespaces,
        stop_flag=stop,
    )
    stopping = Stopping(app, stop)
    for number in (signal.SIGINT, signal.SIGTERM):  # instead of kopf's signal handlers, which would stop the watches first
        asyncio.get_running_loop().add_signal_handler(number, stopping.on_signal, number)
    await kopf.run_tasks(tasks, ignored=ours)


class Stopping:
    """Handles signals. The first signal starts a graceful shutdown, the second one exits the process at once."""

    def __init__(self, app: App, stop: asyncio.Event) -> None:
        self._app = app
        self._stop = stop
        self._task: asyncio.Task[None] | None = None

    def on_signal(self, number: int) -> None:
        """Stop the operator gracefully or, at the second signal, exit the process."""
        if self._task is not None:
            os._exit(128 + number)
        logger.info("received %s, shutting down", signal.Signals(number).name)
        self._task = asyncio.create_task(self._end())

    async def _end(self) -> None:
        try:
            await self._app.stop()
        finally:
            self._stop.set()


def main() -> None:
    """Run the operator's process."""
    set_up("INFO")  # before the settings are read, so that their errors are logged in this format
    settings = Settings()
    set_up(settings.log_level, settings.log_format)
    gc.collect()
    gc.freeze()  # full garbage collections then skip imported objects, so they block the event loop less (docs/internals/load.md)
    uvloop.run(operate(settings))
