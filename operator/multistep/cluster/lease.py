"""Which of several replicas works: the holder of a Lease, for as long as it can renew it.

Nobody compares the clocks of two machines. A holder trusts its hold for two thirds of the lease, counted from before it
asked; another waits for a whole lease, counted from when it saw the record change for the last time. A hold that was
lost is never had again by the same process: what it had in mind is stale, so it ends and begins anew.
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
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from ..errors import ClusterError, NotFound, NotLeading
from .edge import Object
from .resources import LEASES, Resource

logger = logging.getLogger(__name__)

TRUSTED: Final = 2 / 3  # of the lease; the rest is for what is under way and for clocks of different speed
RENEWED: Final = 1 / 5
TRIED_AGAIN: Final = 1 / 15

_BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # macOS counts its sleep in the latter


def boot_time() -> float:
    """Seconds since the machine started, those in which it was suspended among them."""
    return time.clock_gettime(_BOOT)


class Objects(Protocol):
    """What a lease needs of the API server."""

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Object: ...

    async def create(self, manifest: Mapping[str, Any]) -> Object: ...

    async def replace(self, manifest: Mapping[str, Any]) -> Object: ...


@dataclass(frozen=True)
class Replica:
    """A process that may hold the lease. name: of its pod or host; pod_uid: "" outside of a pod."""

    name: str
    pod_uid: str = ""
    token: str = field(default_factory=lambda: secrets.token_hex(4))

    def __str__(self) -> str:
        return f"{self._place}{self.token}"

    def outlived(self, holder: str) -> bool:
        """Whether the holder is an earlier container of this pod: the kubelet starts one when the one before has ended."""
        return bool(self.pod_uid) and holder.startswith(self._place)

    @property
    def _place(self) -> str:
        return f"{self.name}_{self.pod_uid}_" if self.pod_uid else f"{self.name}_"


class Lease:
    """The lease as one replica sees it. seconds: how long it holds; clock: seconds that never stand still.

    Give it a client of its own with a time limit of about a fifth of seconds: other requests must not keep it waiting.
    """

    def __init__(
        self,
        objects: Objects,
        replica: Replica,
        *,
        namespace: str,
        name: str,
        seconds: float = 15.0,
        clock: Callable[[], float] = boot_time,
    ) -> None:
        self.replica = replica
        self.holder = ""  # as last heard
        self.won = asyncio.Event()  # set once, when the lease is had
        self.trouble = "nothing was asked yet"  # why the API server could not be asked the last time; "" if it could
        self._objects = objects
        self._namespace, self._name = namespace, name
        self._seconds = seconds
        self._clock = clock
        self._mine: Object | None = None  # the record as we wrote it, if that is known
        self._seen = ("", -math.inf)  # version of the record, and when it was seen first
        self._until = self._heard_at = -math.inf

    @property
    def held(self) -> bool:
        """Whether this replica may act at this very moment."""
        return self._clock() < self._until

    @property
    def silent_seconds(self) -> float:
        """How long ago the API server last answered."""
        return self._clock() - self._heard_at

    def check(self) -> None:
        """Raise NotLeading unless the lease is held."""
        if not self.held:
            raise NotLeading(f"{self.replica} does not hold the lease {self._namespace}/{self._name}")

    async def attempt(self) -> None:
        """Renew the lease if it is held, or take it if nobody else has it. Raises NotLeading once it was lost."""
        if self.won.is_set():
            self.check()
        asked_at = self._clock()
        record, self._mine = self._mine or await self._read(), None  # until it is known what becomes of it
        if self._is_free(record):
            self._mine = await self._write(record, str(self.replica))
            if self.won.is_set():
                self.check()  # it was asleep meanwhile
            self._until = asked_at + TRUSTED * self._seconds
            self.won.set()
        elif self.won.is_set():
            self._until = -math.inf
            self.check()

    async def keep(self) -> None:
        """Attempt it again and again. Raises NotLeading when it was had and is lost."""
        while True:
            await self._attempt_in_time()
            pause = RENEWED if self._mine else TRIED_AGAIN
            await asyncio.sleep(pause * self._seconds * random.uniform(0.8, 1.0))

    async def _attempt_in_time(self) -> None:
        limit = RENEWED * self._seconds
        try:
            async with asyncio.timeout(limit):
                await self.attempt()
            self.trouble = ""
        except (ClusterError, TimeoutError) as error:
            self.trouble = str(error) or f"no answer within {limit:g} s"
            logger.warning("lease %s/%s: %s", self._namespace, self._name, self.trouble)
            if self.won.is_set():
                self.check()

    async def release(self) -> None:
        """Let another have it at once. Only for when nothing is done any more that needs it; a repetition does nothing."""
        record, held = self._mine, self.held
        self._until, self._mine = -math.inf, None
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
        self._hear(record)
        return record

    def _hear(self, record: Object) -> None:
        version: str = record["metadata"]["resourceVersion"]
        self._heard_at = self._clock()
        self.holder = _spec(record).get("holderIdentity") or ""
        if version != self._seen[0]:
            self._seen = (version, self._heard_at)

    def _is_free(self, record: Object) -> bool:
        if self.holder in ("", str(self.replica)) or self.replica.outlived(self.holder):
            return True
        lasts = _spec(record).get("leaseDurationSeconds") or self._seconds  # what its holder counts on
        return not self.won.is_set() and self._clock() - self._seen[1] > lasts

    async def _write(self, record: Object, holder: str) -> Object:
        """Only over the version that was read: of two that find it free, one gets it."""
        old, now = _spec(record), datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        spec: dict[str, Any] = {
            **old,
            "holderIdentity": holder,
            "leaseDurationSeconds": math.ceil(self._seconds),
            "renewTime": now,  # this and acquireTime are for people
        }
        if holder and holder != old.get("holderIdentity"):
            spec |= {"acquireTime": now, "leaseTransitions": old.get("leaseTransitions", -1) + 1}
        written = await self._objects.replace({**record, "apiVersion": LEASES.api_version, "kind": LEASES.kind, "spec": spec})
        self._hear(written)
        return written


def _spec(record: Object) -> dict[str, Any]:
    return record.get("spec") or {}
