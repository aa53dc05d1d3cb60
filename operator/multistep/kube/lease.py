"""Leader election. The replica that holds a Lease is the leader, for as long as it renews the lease in time.

The clocks of two machines are never compared. The leader acts until the renew deadline, which starts when it sends its last
successful renewal. A standby acquires the lease if the Lease object has not changed for a whole lease duration on the standby's own
clock. A process that lost the lease never acquires it again, because its state is stale. It exits and is restarted.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from multistep.errors import ClusterError, NotFound, NotLeading
from multistep.kube.cluster_protocols import Object
from multistep.kube.resources import LEASES, Resource
from multistep.timestamps import rfc3339

logger = logging.getLogger(__name__)

# These times are for the default lease duration. For another duration, they are scaled in proportion.
LEASE_DURATION_SECONDS: Final = 15.0
RENEW_DEADLINE_SECONDS: Final = 10.0  # 5 s before the lease expires, as a margin for requests in flight and different clock speeds
RENEW_PERIOD_SECONDS: Final = 3.0  # time between two renewals, and timeout of one attempt
RETRY_PERIOD_SECONDS: Final = 1.0  # time between two attempts to acquire the lease, and after a failed renewal

_BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # CLOCK_MONOTONIC of macOS includes suspended time


def boot_time() -> float:
    """Return the seconds since the machine started, including the time for which it was suspended."""
    return time.clock_gettime(_BOOT)


def attempt_timeout_seconds(lease_seconds: float) -> float:
    """Return the timeout of one attempt to acquire or renew a lease of this duration."""
    return RENEW_PERIOD_SECONDS * lease_seconds / LEASE_DURATION_SECONDS


class LeaseObjects(Protocol):
    """The calls of the API server that a lease needs."""

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Object: ...

    async def create(self, manifest: Mapping[str, Any]) -> Object: ...

    async def replace(self, manifest: Mapping[str, Any]) -> Object: ...


@dataclass(frozen=True)
class Replica:
    """A process that may hold the lease."""

    name: str
    """Name of the process's pod or host."""
    pod_uid: str = ""
    """UID of the pod, or "" outside of a pod."""
    token: str = field(default_factory=lambda: secrets.token_hex(4))

    def __str__(self) -> str:
        return f"{self._prefix}{self.token}"

    def replaces(self, holder: str) -> bool:
        """Return whether the holder is an earlier container of this pod. That container has then ended, because the kubelet starts
        a container only after the end of the earlier one."""
        return bool(self.pod_uid) and holder.startswith(self._prefix)

    @property
    def _prefix(self) -> str:
        return f"{self.name}_{self.pod_uid}_" if self.pod_uid else f"{self.name}_"


class Lease:
    """The lease, and whether this replica holds it."""

    def __init__(
        self,
        objects: LeaseObjects,
        replica: Replica,
        *,
        namespace: str,
        name: str,
        seconds: float = LEASE_DURATION_SECONDS,
        clock: Callable[[], float] = boot_time,
    ) -> None:
        """Prepare to acquire the lease.

        Args:
            objects: A client that is used only for the lease, with attempt_timeout_seconds as its timeout, so that other requests
            cannot delay a renewal.
            seconds: The lease duration.
            clock: Returns seconds that include the time for which the machine was suspended.
        """
        self.replica = replica
        self.holder = ""  # the lease's holder at the last read
        self.acquired = asyncio.Event()  # set when this replica acquires the lease, and never cleared
        self.last_error = "no request was sent yet"  # why the last request failed, or ""
        self._objects = objects
        self._namespace = namespace
        self._name = name
        self._seconds = seconds
        self._scale = seconds / LEASE_DURATION_SECONDS
        self._clock = clock
        # The Lease object that was last written, or None if the outcome of the write is unknown.
        self._written: Object | None = None
        self._seen = ("", -math.inf)  # resourceVersion of the Lease object, and the time when this replica first read it
        self._held_until = -math.inf
        self._answered_at = -math.inf

    @property
    def held(self) -> bool:
        """Whether this replica is the leader now."""
        return self._clock() < self._held_until

    @property
    def seconds_since_answer(self) -> float:
        """Seconds since the API server last answered."""
        return self._clock() - self._answered_at

    def check(self) -> None:
        """Raise NotLeading unless the lease is held."""
        if not self.held:
            raise NotLeading(f"{self.replica} does not hold the lease {self._namespace}/{self._name}")

    async def attempt(self) -> None:
        """Renew the lease if this replica holds it, or acquire it if it is free. Raises NotLeading if this replica lost it."""
        if self.acquired.is_set():
            self.check()
        asked_at = self._clock()
        record = self._written or await self._read()
        self._written = None  # until the outcome of the write is known
        if self._is_free(record):
            self._written = await self._write(record, str(self.replica))
            if self.acquired.is_set():
                self.check()  # the lease may have expired while the machine was suspended during the write
            self._held_until = asked_at + RENEW_DEADLINE_SECONDS * self._scale
            self.acquired.set()
        elif self.acquired.is_set():
            self._held_until = -math.inf
            self.check()

    async def hold(self) -> None:
        """Acquire the lease, then renew it. Raises NotLeading when it is lost."""
        while True:
            await self._attempt_with_timeout()
            pause = RENEW_PERIOD_SECONDS if self._written else RETRY_PERIOD_SECONDS
            await asyncio.sleep(pause * self._scale * random.uniform(0.8, 1.0))

    async def _attempt_with_timeout(self) -> None:
        timeout = attempt_timeout_seconds(self._seconds)
        try:
            async with asyncio.timeout(timeout):
                await self.attempt()
            self.last_error = ""
        except (ClusterError, TimeoutError) as error:
            self.last_error = str(error) or f"no answer within {timeout:g} s"
            logger.warning("lease %s/%s: %s", self._namespace, self._name, self.last_error)
            if self.acquired.is_set():
                self.check()

    async def release(self) -> None:
        """Release the lease, so that a standby can acquire it at once. Call this after all work has stopped. The call is
        idempotent."""
        record = self._written
        held = self.held
        self._held_until = -math.inf
        self._written = None
        if held:
            record = record or await self._read()
            if _spec(record).get("holderIdentity") == str(self.replica):
                await self._write(record, "")

    async def _read(self) -> Object:
        try:
            record = await self._objects.get(LEASES, self._namespace, self._name)
        except NotFound:
            metadata = {"name": self._name, "namespace": self._namespace}
            record = await self._objects.create({"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": metadata})
        self._observe(record)
        return record

    def _observe(self, record: Object) -> None:
        version: str = record["metadata"]["resourceVersion"]
        self._answered_at = self._clock()
        self.holder = _spec(record).get("holderIdentity") or ""
        if version != self._seen[0]:
            self._seen = (version, self._answered_at)

    def _is_free(self, record: Object) -> bool:
        if self.holder in ("", str(self.replica)) or self.replica.replaces(self.holder):
            return True
        duration = _spec(record).get("leaseDurationSeconds") or self._seconds  # the holder may use another lease duration
        return not self.acquired.is_set() and self._clock() - self._seen[1] > duration

    async def _write(self, record: Object, holder: str) -> Object:
        """Replace the Lease object at the resourceVersion that was read, so that only one of several replicas acquires a free
        lease."""
        old = _spec(record)
        now = rfc3339(time.time(), "microseconds")
        spec: dict[str, Any] = {
            **old,
            "holderIdentity": holder,
            "leaseDurationSeconds": math.ceil(self._seconds),
            "renewTime": now,  # this and acquireTime are only for people, because replicas do not compare clocks
        }
        if holder and holder != old.get("holderIdentity"):
            spec |= {"acquireTime": now, "leaseTransitions": old.get("leaseTransitions", -1) + 1}
        written = await self._objects.replace({**record, "apiVersion": LEASES.api_version, "kind": LEASES.kind, "spec": spec})
        self._observe(written)
        return written


def _spec(record: Object) -> dict[str, Any]:
    return record.get("spec") or {}
