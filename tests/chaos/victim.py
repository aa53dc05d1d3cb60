"""The deployed operator as the target of kills: its process, pod and log."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

from multistep.cli.doctor.observe import is_ready
from multistep.errors import ClusterError
from multistep.kube.client import ClusterClient
from multistep.kube.resources import LEASES, PODS
from tests.e2e import operators
from tests.e2e.given import DEADLINE_SECONDS, Object
from tests.support.machine import kill, processes

NAMESPACE = "multistep-system"
SELECTOR = "app.kubernetes.io/name=multistep"
NAME = "multistep"  # name of the Deployment and of the Lease
LOG_LINES = 60
# A short lease: with the default of 15 s, new operators would be killed before they acquire the dead leader's lease.
QUICK_TO_FOLLOW = {"MULTISTEP_LEASE_SECONDS": "6"}


class Victim:
    """The deployed operator with its successive pods. log: the file to which the pods' logs are appended."""

    def __init__(self, client: ClusterClient, log: Path) -> None:
        self._client = client
        self.log = log

    async def pods(self) -> list[Object]:
        """Return the operator's existing pods."""
        return await self._client.list_all(PODS, NAMESPACE, label_selector=SELECTOR)

    async def running(self) -> Object | None:
        """Return a pod in which the operator runs and which is not being deleted; None if no such pod exists."""
        return next((each for each in await self.pods() if _runs(each) and not each["metadata"].get("deletionTimestamp")), None)

    async def kill(self, pod: Object) -> bool:
        """Send SIGKILL to the operator's process. Return False if it does not exist."""
        await self.keep_log(pod)
        return bool(kill(processes(pod, operators.PROCESS)))

    async def remove(self, pod: Object) -> None:
        """Delete the pod without grace period, so that its replacement is created at once."""
        await self._client.delete(PODS, NAMESPACE, pod["metadata"]["name"], uid=pod["metadata"]["uid"], grace_period_seconds=0)

    async def keep_log(self, pod: Object) -> None:
        """Append the log of the pod's current container to the log file."""
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod['metadata']['name']}/log"
        with suppress(ClusterError), self.log.open("ab") as log:
            log.write(f"---- {pod['metadata']['name']}, {restarts(pod)} restarts\n".encode())
            async for chunk in self._client.raw_stream(path):
                log.write(chunk)

    async def ready(self, seconds: float = DEADLINE_SECONDS) -> None:
        """Wait until the operator has exactly one pod and that pod is ready."""
        async with asyncio.timeout(seconds):
            while not await self._is_ready():
                await asyncio.sleep(0.5)

    async def works(self, pod: Object) -> bool:
        """Return whether the pod's operator is ready and the leader."""
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
    """Return how often the kubelet restarted the operator in its pod."""
    return next((each["restartCount"] for each in pod["status"].get("containerStatuses") or []), 0)


def _runs(pod: Object) -> bool:
    return any("running" in each["state"] for each in pod["status"].get("containerStatuses") or [])
