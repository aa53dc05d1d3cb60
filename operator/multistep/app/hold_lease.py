"""Acquires the leader lease, exits the process when the lease is lost, and releases the lease at the end."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Final

from multistep.errors import ClusterError, NotLeading
from multistep.kube.client import ClusterClient
from multistep.kube.lease import Lease, Replica, attempt_timeout_seconds
from multistep.settings import Settings
from multistep.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)

LOST_LEASE_EXIT_CODE: Final = 3
RELEASE_SECONDS: Final = 3.0


async def connect_lease(stack: AsyncExitStack, settings: Settings, metrics: Metrics) -> Lease:
    """Return the lease, with an API client of its own, so that other requests never delay a renewal."""
    client = await ClusterClient.connect(timeout_seconds=attempt_timeout_seconds(settings.lease_seconds), observe=metrics.requested)
    await stack.enter_async_context(client)
    return Lease(
        client,
        Replica(settings.pod_name or socket.gethostname(), settings.pod_uid),
        namespace=settings.lease_namespace or client.namespace,
        name=settings.lease_name,
        seconds=settings.lease_seconds,
    )


async def hold_lease(lease: Lease, end: Callable[[int], object]) -> None:
    """Acquire and renew the lease. Call ``end``, which exits the process, when the lease is lost."""
    try:
        await lease.hold()
    except NotLeading as error:
        logger.critical("lost the leader lease; exiting: %s", error)
        logging.shutdown()
        end(LOST_LEASE_EXIT_CODE)  # exits at once, because a graceful shutdown would wait for threads that unpack downloads


async def release_lease(lease: Lease) -> None:
    """Release the lease, so that a standby can acquire it before it expires."""
    try:
        async with asyncio.timeout(RELEASE_SECONDS):
            await lease.release()
    except (ClusterError, TimeoutError) as error:
        logger.warning("the lease could not be released; it expires: %s", error)
    else:
        logger.info("%s stopped and released the lease", lease.replica)
