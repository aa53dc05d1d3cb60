"""Test what pods need of the container runtime and the kernel: image volumes and user namespaces."""

from __future__ import annotations

from typing import Any

import pytest

from localkube import machine
from multistep.client.reconnecting_watch import WatchingClient
from tests.e2e.cluster.conftest import BASE, Pod, run_pod
from tests.e2e.cluster.test_exec import open_exec
from tests.support.exec_server import read_all

pytestmark = pytest.mark.xdist_group("cluster")

VOLUME = {"name": "debian", "image": {"reference": BASE}}
MOUNT = {"name": "debian", "mountPath": "/debian", "subPath": "etc/apt", "readOnly": True}
# Why the node supports no user namespaces; None if it does. Such a node rejects pods that ask for one.
NO_USER_NAMESPACES = machine.user_namespaces_problem()


async def shell(client: WatchingClient, pod: Pod, script: str) -> str:
    stream = await open_exec(client, pod, "sh", "-c", script)
    output = await read_all(stream)
    await stream.close()
    return output.decode()


async def test_a_directory_of_an_image_is_mounted_read_only(client: WatchingClient, namespace: str, asleep: dict[str, Any]) -> None:
    pod = await run_pod(namespace, "image-volume", {**asleep, "volumeMounts": [MOUNT]}, volumes=[VOLUME])
    assert "sources.list" in (await shell(client, pod, "ls /debian")).split()
    assert "Read-only file system" in await shell(client, pod, "touch /debian/new 2>&1")


@pytest.mark.skipif(NO_USER_NAMESPACES is not None, reason=str(NO_USER_NAMESPACES))
async def test_root_of_a_pods_user_namespace_is_nobody_on_the_node(
    client: WatchingClient, namespace: str, asleep: dict[str, Any]
) -> None:
    scratch, memory = {"name": "scratch", "emptyDir": {}}, {"name": "memory", "emptyDir": {"medium": "Memory"}}
    mounts = [MOUNT, *({"name": each["name"], "mountPath": f"/{each['name']}"} for each in (scratch, memory))]
    context = {"seccompProfile": {"type": "RuntimeDefault"}}
    container = {**asleep, "volumeMounts": mounts, "securityContext": context}
    pod = await run_pod(namespace, "user-namespace", container, volumes=[VOLUME, scratch, memory], hostUsers=False)

    inside, outside, size = (await shell(client, pod, "cat /proc/self/uid_map")).split()
    assert (inside, size) == ("0", "65536") and int(outside) >= 65536
    files = "/scratch/new /memory/new"
    owners = await shell(client, pod, f"touch {files} && stat --format %u {files} /debian/sources.list /etc/passwd")
    assert owners.split() == ["0"] * 4
    assert "Seccomp:\t2" in await shell(client, pod, "cat /proc/self/status")
