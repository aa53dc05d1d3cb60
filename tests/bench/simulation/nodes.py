"""Simulate nodes with KWOK beside the local cluster. Their pods run no containers; each exec session is connected to the
Simulation.

KWOK runs the command of an exec session on the host. A mount that only KWOK sees puts a program of the bench at the runner's path.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from localkube import network
from localkube.config import load_config
from localkube.pki import Pki
from multistep.errors import NotFound
from multistep.kube.client import Client
from multistep.kube.resources import Resource
from multistep.pods.runner_mount import RUNNER

LABEL: Final = "multistep.dev/bench"
VALUE: Final = "simulated"
TAINT: Final = {"key": LABEL, "value": VALUE, "effect": "NoSchedule"}
NODES: Final = Resource("v1", "Node", "nodes", namespaced=False)
PORT: Final = 10_247
START_SECONDS: Final = 120.0
_STAGES = ("node/fast/node-initialize.yaml", "pod/fast/pod-ready.yaml", "pod/fast/pod-delete.yaml")

Object = dict[str, Any]


def available() -> bool:
    """Return whether KWOK is installed. `make bench` installs it and sets MULTISTEP_KWOK only for a cluster of localkube."""
    return "MULTISTEP_KWOK" in os.environ


def placement() -> Object:
    """Return the pod spec fields that place a pod on simulated nodes only."""
    return {"nodeSelector": {LABEL: VALUE}, "tolerations": [{**TAINT, "operator": "Equal"}]}


@asynccontextmanager
async def simulated_nodes(client: Client, namespace: str, pods: Sequence[str], socket: Path, *, count: int) -> AsyncIterator[None]:
    """Run simulated nodes for the duration. pods: names of pods that get exec sessions; socket: path of the Simulation's socket."""
    names = [f"simulated-{number}" for number in range(count)]
    with tempfile.TemporaryDirectory(prefix="multistep-kwok-") as directory:
        place = Path(directory)
        (place / "kwok.yaml").write_text(_settings(namespace, pods, socket))
        with _running(place) as kwok:
            try:
                for name in names:
                    await client.create(_node(name))
                await _until_ready(client, names, kwok, place / "kwok.log")
                yield
            finally:
                for name in names:
                    await client.delete(NODES, None, name)


def _settings(namespace: str, pods: Sequence[str], socket: Path) -> str:
    """Return KWOK's configuration: its stages, and one Exec per pod that passes socket and pod name to the bench's program."""
    stages = Path(os.environ["MULTISTEP_KWOK_STAGES"])
    documents = [(stages / name).read_text() for name in _STAGES]
    return "\n---\n".join([*documents, *(json.dumps(_exec(namespace, pod, socket)) for pod in pods)])


def _exec(namespace: str, pod: str, socket: Path) -> Object:
    variables = [{"name": "SIMULATION_SOCKET", "value": str(socket)}, {"name": "SIMULATED_POD", "value": pod}]
    return {
        "apiVersion": "kwok.x-k8s.io/v1alpha1",
        "kind": "Exec",
        "metadata": {"name": pod, "namespace": namespace},
        "spec": {"execs": [{"local": {"envs": variables}}]},
    }


@contextmanager
def _running(place: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run KWOK in the first node's network namespace, with the bench's program mounted at the runner's path."""
    config, runner = load_config(), Path(RUNNER)
    pki, node = Pki(config.paths.pki), config.first
    arguments = [
        f"--config={place / 'kwok.yaml'}",
        f"--kubeconfig={config.paths.kubeconfig}",
        f"--manage-nodes-with-label-selector={LABEL}={VALUE}",
        f"--node-ip={node.address}",
        f"--node-port={PORT}",
        f"--server-address={node.address}:{PORT}",
        f"--tls-cert-file={pki.certificate('kubelet')}",
        f"--tls-private-key-file={pki.key('kubelet')}",
        "--cidr=10.200.0.0/16",
        "--node-lease-duration-seconds=40",  # renewed every 10 s; without renewals, a node counts as failed after 24 s
    ]
    script = f'mount --make-rprivate / && mount --bind "$0" {runner.parent} && exec "$@"'
    inside = ["unshare", "--mount", "sh", "-c", script, str(_built(place)), os.environ["MULTISTEP_KWOK"]]
    runner.parent.mkdir(exist_ok=True)  # the mount point must exist on the host
    with (place / "kwok.log").open("wb") as log:
        kwok = subprocess.Popen([*network.enter(node), *inside, *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        yield kwok
    finally:
        kwok.terminate()
        kwok.wait()
        with suppress(OSError):  # fails if another bench on this machine uses the directory
            runner.parent.rmdir()


def _built(place: Path) -> Path:
    """Build the program that replaces the runner, and return its directory."""
    directory = place / "runner"
    source = Path(__file__).with_name("runner.go")
    environment = os.environ | {"CGO_ENABLED": "0", "GO111MODULE": "off"}
    command = ["go", "build", "-o", str(directory / Path(RUNNER).name), str(source)]
    subprocess.run(command, env=environment, check=True, cwd=place)
    return directory


def _node(name: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {LABEL: VALUE, "kubernetes.io/hostname": name}},
        "spec": {"taints": [TAINT]},
        "status": {"allocatable": {"cpu": "10k", "memory": "10Ti", "pods": "10k"}},
    }


async def _until_ready(client: Client, names: Sequence[str], kwok: subprocess.Popen[bytes], log: Path) -> None:
    async with asyncio.timeout(START_SECONDS):
        for name in names:
            while not await _is_ready(client, name):
                if kwok.poll() is not None:
                    raise RuntimeError(f"KWOK ended: {await asyncio.to_thread(log.read_text)}")
                await asyncio.sleep(0.2)


async def _is_ready(client: Client, name: str) -> bool:
    try:
        node = await client.get(NODES, None, name)
    except NotFound:
        return False
    taints = {each["key"] for each in node["spec"].get("taints") or []}
    conditions = {each["type"]: each["status"] for each in node["status"].get("conditions") or []}
    return conditions.get("Ready") == "True" and taints <= {TAINT["key"]} and bool(node["status"].get("addresses"))
