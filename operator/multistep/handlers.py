"""kopf wiring: what happens in the cluster makes keys in the queue; the queue looks."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import kopf

from .api.trial import GROUP, PLURAL, VERSION
from .app import App
from .cluster import pods
from .reconcile.news import News
from .settings import Settings


def register(registry: kopf.OperatorRegistry, settings: Settings) -> App:
    """Put all handlers into a registry. Returns the operator, which starts when kopf does."""
    app, news = App(settings), News()

    @kopf.on.startup(registry=registry)
    async def start(settings: kopf.OperatorSettings, **_: Any) -> None:
        settings.posting.enabled = False  # Events are ours
        settings.scanning.disabled = True  # our resources are known; needs no access to CRDs
        settings.watching.server_timeout = 300  # seconds, so that a stalled watch does not last
        settings.watching.client_timeout = 330
        await app.start()

    @kopf.on.cleanup(registry=registry)
    async def stop(**_: Any) -> None:
        await app.stop()

    @kopf.on.event(GROUP, VERSION, PLURAL, registry=registry)
    async def trial_changed(body: kopf.Body, type: str | None, **_: Any) -> None:
        if (key := news.trial(body, type)) is not None:
            app.queue.add(key)

    @kopf.on.event("v1", "pods", labels={pods.LABEL_TRIAL: kopf.PRESENT}, registry=registry)
    async def pod_changed(body: kopf.Body, type: str | None, **_: Any) -> None:
        if (key := news.pod(body, type)) is not None:
            app.saw_pod(key, body, gone=type == "DELETED")

    return app


async def operate(settings: Settings) -> None:
    """Run the operator until it is told to stop."""
    registry = kopf.get_default_registry()
    register(registry, settings)
    await kopf.operator(
        registry=registry,
        standalone=True,
        namespaces=settings.namespaces,
        clusterwide=not settings.namespaces,
    )


def main() -> None:
    """The operator's process."""
    settings = Settings()
    logging.basicConfig(level=settings.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("kopf").setLevel(logging.WARNING)  # it tells of every event it saw
    asyncio.run(operate(settings))
