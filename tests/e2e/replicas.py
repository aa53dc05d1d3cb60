"""Helpers for the operator's replicas in the local cluster: scale them, find the leader, send signals to their processes."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from typing import Any

from multistep.cli.doctor.observe import is_ready
from multistep.client.reconnecting_watch import WatchingClient
from multistep.errors import NotFound
from multistep.kube.resources import LEASES, PODS
from tests.e2e.operators import PROCESS, require_alone
from tests.support.machine import processes
from tests.support.waiting import eventually

NAMESPACE, NAME = "multistep-system", "multistep"
SELECTOR = f"app.kubernetes.io/name={NAME}"

Object = dict[str, Any]


class Replicas:
    """The operator's Deployment, pods and lease."""

    def __init__(self, client: WatchingClient) -> None:
        self._client = client

    async def scale(self, number: int) -> None:
        """Scale to this number of replicas and wait until all are ready and one is the leader."""
        require_alone()
        await _run("kubectl", "-n", NAMESPACE, "scale", f"deployment/{NAME}", f"--replicas={number}")
        await eventually(lambda: self._settled(number))

    async def lease(self) -> Object:
        """Return the lease's spec."""
        return dict((await self._client.get(LEASES, NAMESPACE, NAME))["spec"])

    async def leader(self) -> Object:
        """Return the leader's pod, which holds the lease. Wait until the kubelet has reported its container in the pod's status.

        The holder may be in a pod that is being deleted, in which the kubelet has restarted it; then wait for another leader.
        """

        async def reported() -> Object | None:
            if not (holder := (await self.lease()).get("holderIdentity")):
                return None  # a leader has released the lease
            with suppress(NotFound):
                pod = await self._client.get(PODS, NAMESPACE, holder.split("_")[0])
                return pod if processes(pod, PROCESS) and not pod["metadata"].get("deletionTimestamp") else None
            return None

        found = await eventually(reported)
        assert found
        return found

    async def until_held_by_another(self, former: str) -> Object:
        """Wait until a replica other than `former` holds the lease, and return the lease."""

        async def taken() -> Object | None:
            lease = await self.lease()
            return None if lease.get("holderIdentity") in (former, "", None) else lease

        found = await eventually(taken)
        assert found
        return found

    async def until_restarted(self, pod: Object) -> Object:
        """Wait until the kubelet has restarted the pod's container; return the terminated state of the old container."""

        async def ended() -> Object | None:
            container = _container(await self._client.get(PODS, NAMESPACE, pod["metadata"]["name"]))
            restarted = container["restartCount"] > _container(pod)["restartCount"] and "running" in container["state"]
            return dict(container["lastState"]["terminated"]) if restarted else None

        found = await eventually(ended)
        assert found
        return found

    async def previous_log(self, pod: Object) -> str:
        """Return the log of the pod's previous container."""
        return await _run("kubectl", "-n", NAMESPACE, "logs", "--previous", pod["metadata"]["name"])

    def signal(self, pod: Object, number: signal.Signals) -> None:
        """Send a signal to the operator's process in a pod."""
        [pid] = processes(pod, PROCESS)
        os.kill(pid, number)

    async def _settled(self, number: int) -> bool:
        pods = await self._client.list_all(PODS, NAMESPACE, label_selector=SELECTOR)
        ready = [each for each in pods if is_ready(each) and not each["metadata"].get("deletionTimestamp")]
        try:
            holder = (await self.lease()).get("holderIdentity") or ""
        except NotFound:
            return False
        return len(pods) == len(ready) == number and any(holder.startswith(f"{each['metadata']['name']}_") for each in ready)


def _container(pod: Object) -> Object:
    [container] = pod["status"]["containerStatuses"]
    return dict(container)


async def _run(*command: str) -> str:
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE)
    out, error = await process.communicate()
    assert process.returncode == 0, error.decode()
    return out.decode()
