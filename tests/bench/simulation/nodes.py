"""Simulated nodes: KWOK beside the local cluster, whose pods run nothing. An exec into one of them reaches the Simulation.

KWOK's exec runs a command on the host, so the path of the runner is made to lead to a program of ours, for KWOK alone.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from localkube import network
from localkube.config import load_config
from localkube.pki import Pki
from multistep.cluster.client import Client
from multistep.cluster.pods import RUNNER
from multistep.cluster.resources import Resource
from multistep.errors import NotFound

LABEL: Final = "multistep.dev/bench"
TAINT: Final = {"key": LABEL, "value": "simulated", "effect": "NoSchedule"}
NODES: Final = Resource("v1", "Node", "nodes", namespaced=False)
PORT: Final = 10_247
START_SECONDS: Final = 60.0
_STAGES = ("node/fast/node-initialize.yaml", "pod/fast/pod-ready.yaml", "pod/fast/pod-delete.yaml")

Object = dict[str, Any]


def placement() -> Object:
    """What a pod template says so that the pod goes to these nodes and to no other."""
    return {"nodeSelector": {LABEL: "simulated"}, "tolerations": [{**TAINT, "operator": "Equal"}]}


@asynccontextmanager
async def simulated_nodes(client: Client, namespace: str, pods: Sequence[str], socket: Path, *, count: int) -> AsyncIterator[None]:
    """Nodes whose pods are simulated. pods: names of those in the namespace that will be exec'ed into; socket: of who answers."""
    with tempfile.TemporaryDirectory(prefix="multistep-simulation-") as directory:
        place = Path(directory)
        (place / "kwok.yaml").write_text(_settings(namespace, pods, socket))
        kwok = _start(place)
        names = [f"simulated-{number}" for number in range(count)]
        try:
            for name in names:
                await client.create(_node(name))
            await _until_ready(client, names, kwok, place)
            yield
        finally:
            kwok.terminate()
            kwok.wait()
            Path(RUNNER).parent.rmdir()
            for name in names:
                await client.delete(NODES, None, name)


def _settings(namespace: str, pods: Sequence[str], socket: Path) -> str:
    """KWOK's stages, and an Exec for each pod: only by that does the program learn whose runner is asked."""
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


def _start(place: Path) -> subprocess.Popen[bytes]:
    """KWOK in the cluster's network, with the runner's path leading to our program in its view of the machine."""
    config = load_config()
    pki, node = Pki(config.paths.pki), config.first
    runner = Path(RUNNER)
    runner.parent.mkdir(exist_ok=True)  # empty, and removed in the end: only a place to mount at
    built = place / "runner"
    built.mkdir()
    source = Path(__file__).with_name("runner.go")
    environment = os.environ | {"CGO_ENABLED": "0", "GO111MODULE": "off"}
    subprocess.run(["go", "build", "-o", str(built / runner.name), str(source)], env=environment, check=True, cwd=place)
    arguments = [
        f"--config={place / 'kwok.yaml'}",
        f"--kubeconfig={config.paths.kubeconfig}",
        f"--manage-nodes-with-label-selector={LABEL}=simulated",
        f"--node-ip={node.address}",
        f"--node-port={PORT}",
        f"--server-address={node.address}:{PORT}",
        f"--tls-cert-file={pki.certificate('kubelet')}",
        f"--tls-private-key-file={pki.key('kubelet')}",
        "--cidr=10.200.0.0/16",
        "--node-lease-duration-seconds=40",
    ]
    script = f'mount --make-rprivate / && mount --bind "$0" {runner.parent} && exec "$@"'
    command = [*network.enter(node), "unshare", "--mount", "sh", "-c", script, str(built), "kwok", *arguments]
    with (place / "kwok.log").open("wb") as log:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def _node(name: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {LABEL: "simulated", "kubernetes.io/hostname": name}},
        "spec": {"taints": [TAINT]},
        "status": {"allocatable": {"cpu": "10k", "memory": "10Ti", "pods": "10k"}},
    }


async def _until_ready(client: Client, names: Sequence[str], kwok: subprocess.Popen[bytes], place: Path) -> None:
    async with asyncio.timeout(START_SECONDS):
        for name in names:
            while not await _is_ready(client, name):
                if kwok.poll() is not None:
                    raise RuntimeError(f"KWOK ended: {(place / 'kwok.log').read_text()[-2000:]}")
                await asyncio.sleep(0.2)


async def _is_ready(client: Client, name: str) -> bool:
    try:
        node = await client.get(NODES, None, name)
    except NotFound:
        return False
    taints = {each["key"] for each in node["spec"].get("taints") or []}
    conditions = {each["type"]: each["status"] for each in node["status"].get("conditions") or []}
    return conditions.get("Ready") == "True" and taints <= {TAINT["key"]}
