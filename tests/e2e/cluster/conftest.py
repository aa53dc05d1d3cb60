"""Provide pods in a real cluster ($KUBECONFIG): one for tests of the exec channel, and one with the real runner as PID 1."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from multistep.cli.doctor.observe import is_ready
from multistep.client.reconnecting_watch import WatchingClient
from multistep.kube.resources import NAMESPACES, PODS
from tests.e2e.given import DEADLINE_SECONDS, made_namespace

ROOT = Path(__file__).parents[3]
BASE = "localhost/debian:bookworm-slim"
WITH_RUNNER = "localhost/multistep-e2e-runner:dev"


@dataclass(frozen=True)
class Pod:
    namespace: str
    name: str
    uid: str
    container: str = "main"


@pytest.fixture(autouse=True, scope="session")
def _cluster() -> None:
    if not os.environ.get("KUBECONFIG"):
        pytest.fail("needs a cluster: make cluster, then export KUBECONFIG as it prints")


@pytest.fixture
async def client() -> AsyncIterator[WatchingClient]:
    async with await WatchingClient.connect() as client:
        yield client


@pytest.fixture(scope="session")
def namespace(_cluster: None) -> Iterator[str]:
    name = f"e2e-exec-{secrets.token_hex(3)}"
    asyncio.run(_create_namespace(name))
    yield name
    asyncio.run(_delete_namespace(name))


@pytest.fixture(scope="session")
def asleep(_cluster: None) -> dict[str, Any]:
    """Load the image of a Debian container that sleeps; return the container."""
    _localkube("image-base")
    _localkube("load", BASE)
    return {"image": BASE, "command": ["sleep", "3600"]}


@pytest.fixture(scope="session")
def pod(namespace: str, asleep: dict[str, Any]) -> Pod:
    return asyncio.run(run_pod(namespace, "asleep", asleep))


@pytest.fixture(scope="session")
def runner_pod(namespace: str, tmp_path_factory: pytest.TempPathFactory) -> Pod:
    """Create a Debian pod with the runner as PID 1."""
    context = tmp_path_factory.mktemp("image")
    _build_runner(context / "runner")
    (context / "Dockerfile").write_text(f"FROM {BASE}\nCOPY runner /multistep/runner\n")
    _localkube("build", "-t", WITH_RUNNER, str(context))
    _localkube("load", WITH_RUNNER)
    uid = {"name": "MULTISTEP_POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}
    probe = {"httpGet": {"path": "/ready", "port": 9876}, "periodSeconds": 1}
    serve = {"command": ["/multistep/runner", "serve"], "env": [uid], "readinessProbe": probe}
    return asyncio.run(run_pod(namespace, "runner", {"image": WITH_RUNNER, **serve}))


def _build_runner(target: Path) -> None:
    if shutil.which("go") is None:
        pytest.skip("needs Go to build the runner")
    command = ["go", "build", "-o", str(target), "."]
    subprocess.run(command, cwd=ROOT / "runner", check=True, env={**os.environ, "CGO_ENABLED": "0"})


def _localkube(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "localkube", *arguments], cwd=ROOT, check=True)


async def _create_namespace(name: str) -> None:
    async with await WatchingClient.connect() as client:
        await made_namespace(client, name)


async def _delete_namespace(name: str) -> None:
    async with await WatchingClient.connect() as client:
        for pod in await client.list_all(PODS, name):
            await client.delete(PODS, name, pod["metadata"]["name"], grace_period_seconds=0)
        await client.delete(NAMESPACES, None, name)


async def run_pod(namespace: str, name: str, container: dict[str, Any], **more: Any) -> Pod:
    """Create a pod with this container and wait until it is ready. more: further fields of the pod's spec."""
    spec = {
        **more,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "automountServiceAccountToken": False,
        "containers": [{"name": "main", "imagePullPolicy": "IfNotPresent", **container}],
    }
    async with await WatchingClient.connect() as client:
        made = await client.create(
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace}, "spec": spec}
        )
        async with asyncio.timeout(DEADLINE_SECONDS), aclosing(client.watch(PODS, namespace)) as events:
            async for event in events:
                if event.object["metadata"]["name"] == name and is_ready(event.object):
                    break
    return Pod(namespace, name, made["metadata"]["uid"])
