"""The operator in the cluster, as the one to be killed: its process by containerd's account of it, its pod, its log."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from localkube import processes
from localkube.config import Config
from multistep.cluster.client import Client
from multistep.cluster.resources import LEASES
from multistep.errors import ClusterError, UsageError
from tests.e2e.given import Object

NAMESPACE = "multistep-system"
SELECTOR = "app.kubernetes.io/name=multistep"
NAME = "multistep"  # of the Deployment, and of the Lease
LOG_LINES = 60
LEASE_SECONDS = 6  # the default is 15
_LEASE_VARIABLE = "MULTISTEP_LEASE_SECONDS"


class Victim:
    """The operator's pods. log: what they said, kept over their deaths."""

    def __init__(self, client: Client, config: Config, log: Path) -> None:
        self._client = client
        self._config = config
        self.log = log

    async def pods(self) -> list[Object]:
        """The operator's pods that there are."""
        return await self._client.list_pods(NAMESPACE, label_selector=SELECTOR)

    async def running(self) -> Object | None:
        """The pod whose operator runs, if there is one."""
        return next(
            (each for each in await self.pods() if _container_id(each) and not each["metadata"].get("deletionTimestamp")), None
        )

    async def kill(self, pod: Object) -> bool:
        """SIGKILL for the operator's process; False if it has none any more."""
        await self.keep_log(pod)
        process = await self._process(_container_id(pod))
        return process is not None and _sigkill(process)

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

    async def ready(self, seconds: float = 120.0) -> None:
        """The operator is ready, and no other pod of it is left."""
        async with asyncio.timeout(seconds):
            while not await self._is_ready():
                await asyncio.sleep(0.5)

    async def works(self, pod: Object) -> bool:
        """Whether the operator in it leads, and is up."""
        lease = await self._client.get(LEASES, NAMESPACE, NAME)
        holder: str = (lease.get("spec") or {}).get("holderIdentity") or ""
        return is_ready(pod) and holder.startswith(f"{pod['metadata']['name']}_")

    @asynccontextmanager
    async def quick_to_follow(self) -> AsyncIterator[None]:
        """A successor takes the lease of an operator that was killed with its pod soon, or none would ever get to work."""
        await self._set(f"{_LEASE_VARIABLE}={LEASE_SECONDS}")
        try:
            yield
        finally:
            await self._set(f"{_LEASE_VARIABLE}-")

    async def _set(self, variable: str) -> None:
        for command in (("set", "env", f"deployment/{NAME}", variable), ("rollout", "status", f"deployment/{NAME}")):
            process = await asyncio.create_subprocess_exec("kubectl", "-n", NAMESPACE, *command, stdout=asyncio.subprocess.DEVNULL)
            if await process.wait():
                raise UsageError(f"kubectl {' '.join(command)} ended with exit code {process.returncode}")

    async def _is_ready(self) -> bool:
        try:
            found = await self.pods()
        except ClusterError:
            return False
        return len(found) == 1 and is_ready(found[0])

    async def _process(self, container: str) -> processes.Identity | None:
        """The first process of a container."""
        command = [
            "ctr",
            "--address",
            str(self._config.paths.containerd_socket(self._config.first)),
            "--namespace",
            "k8s.io",
            "tasks",
            "list",
        ]
        asked = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE)
        told, _ = await asked.communicate()
        lines = [line.split() for line in told.decode().splitlines()]
        pid = next((int(line[1]) for line in lines if line[0] == container), None)
        if pid is None:
            return None
        return _identified(pid, container)


def restarts(pod: Object) -> int:
    """How often the kubelet started the operator anew in its pod."""
    return next((each["restartCount"] for each in pod["status"].get("containerStatuses") or []), 0)


def is_ready(pod: Object) -> bool:
    """Whether the operator in it says that it works."""
    return any(each["type"] == "Ready" and each["status"] == "True" for each in pod["status"].get("conditions") or [])


def _container_id(pod: Object) -> str:
    for each in pod["status"].get("containerStatuses") or []:
        if "running" in each["state"]:
            return str(each["containerID"]).removeprefix("containerd://")
    return ""


def _identified(pid: int, container: str) -> processes.Identity | None:
    """The process, if its control group names the container: pids are used again."""
    process = processes.identify(pid)
    try:
        return process if container in Path(f"/proc/{pid}/cgroup").read_text() else None
    except OSError:
        return None


def _sigkill(process: processes.Identity) -> bool:
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        if not process.alive:
            return False
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        return True
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
