"""The operator in the cluster, as the one to be killed: its process, its pod, its log."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

from multistep.cluster.client import Client
from multistep.cluster.resources import LEASES
from multistep.errors import ClusterError
from tests.e2e import operators
from tests.e2e.given import DEADLINE_SECONDS, Object
from tests.support.machine import kill, processes

NAMESPACE = "multistep-system"
SELECTOR = "app.kubernetes.io/name=multistep"
NAME = "multistep"  # of the Deployment, and of the Lease
LOG_LINES = 60
QUICK_TO_FOLLOW = {"MULTISTEP_LEASE_SECONDS": "6"}  # or, killed with their pods, none would ever get to work: the default is 15


class Victim:
    """The operator's pods. log: what they said, kept over their deaths."""

    def __init__(self, client: Client, log: Path) -> None:
        self._client = client
        self.log = log

    async def pods(self) -> list[Object]:
        """The operator's pods that there are."""
        return await self._client.list_pods(NAMESPACE, label_selector=SELECTOR)

    async def running(self) -> Object | None:
        """The pod whose operator runs, if there is one."""
        return next((each for each in await self.pods() if _runs(each) and not each["metadata"].get("deletionTimestamp")), None)

    async def kill(self, pod: Object) -> bool:
        """SIGKILL for the operator's process; False if it has none any more."""
        await self.keep_log(pod)
        return bool(kill(processes(pod, operators.PROCESS)))

    async def remove(self, pod: Object) -> None:
        """Delete its pod without grace, so that a new one is made at once, whatever the kubelet is at with the old one."""
        await self._client.delete_pod(NAMESPACE, pod["metadata"]["name"], uid=pod["metadata"]["uid"], grace_period_seconds=0)

    async def keep_log(self, pod: Object) -> None:
        """Append what the operator said so far."""
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod['metadata']['name']}/log"
        with suppress(ClusterError), self.log.open("ab") as log:
            log.write(f"---- {pod['metadata']['name']}, {restarts(pod)} restarts\n".encode())
            async for chunk in self._client.raw_stream(path):
                log.write(chunk)

    async def ready(self, seconds: float = DEADLINE_SECONDS) -> None:
        """The operator is ready, and no other pod of it is left."""
        async with asyncio.timeout(seconds):
            while not await self._is_ready():
                await asyncio.sleep(0.5)

    async def works(self, pod: Object) -> bool:
        """Whether the operator in it leads, and is up."""
        lease = await self._client.get(LEASES, NAMESPACE, NAME)
        holder: str = (lease.get("spec") or {}).get("holderIdentity") or ""
        return is_ready(pod) and holder.startswith(f"{pod['metadata']['name']}_")

    async def _is_ready(self) -> bool:
        try:
            found = await self.pods()
        except ClusterError:
            return False
        return len(found) == 1 and is_ready(found[0])


def restarts(pod: Object) -> int:
    """How often the kubelet started the operator anew in its pod."""
    return next((each["restartCount"] for each in pod["status"].get("containerStatuses") or []), 0)


def is_ready(pod: Object) -> bool:
    """Whether the operator in it says that it works."""
    return any(each["type"] == "Ready" and each["status"] == "True" for each in pod["status"].get("conditions") or [])


def _runs(pod: Object) -> bool:
    return any("running" in each["state"] for each in pod["status"].get("containerStatuses") or [])
