"""Run real servers for operator, pods and tests. They keep their files in a temporary directory and stop with the test."""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import random
import secrets
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from localkube.config import load_config

ROOT = Path(__file__).parents[2]
START_SECONDS = 240
_PORTS = range(20_000, 30_000)  # below the ranges of NodePorts and of ephemeral ports


@dataclass(frozen=True)
class Place:
    """Where a server runs. address: its listen address; prefix: the command prefix that runs a program there."""

    address: str
    prefix: Sequence[str] = ()


HERE = Place("127.0.0.1")


def node() -> Place:
    """Return the place for servers on localkube's node, which pods and tests reach at the same address."""
    return Place(load_config().network.api_address, (sys.executable, "-m", "localkube", "node"))


@dataclass(frozen=True)
class Server:
    """A running server. host: ``ADDRESS:PORT``; directory: its data; log: file with its output."""

    host: str
    directory: Path
    log: Path

    @property
    def url(self) -> str:
        return f"http://{self.host}"


@dataclass(frozen=True)
class S3(Server):
    """An S3 server with one bucket and one user, who has all rights."""

    access_key: str
    secret_key: str
    bucket: str = "bucket"
    region: str = "us-east-1"

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment variables that S3 clients read."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_ENDPOINT_URL": self.url,
            "AWS_REGION": self.region,
            "AWS_ALLOW_HTTP": "true",
        }


@dataclass(frozen=True)
class Registry(Server):
    """A registry of OCI images and artifacts. username: empty if the registry allows anonymous access."""

    username: str = ""
    password: str = ""


@asynccontextmanager
async def s3(place: Place = HERE) -> AsyncIterator[S3]:
    """Run an S3 server whose objects are files: ``directory/bucket/KEY``."""
    key, secret = f"key{secrets.token_hex(4)}", secrets.token_hex(16)
    with tempfile.TemporaryDirectory(prefix="multistep-s3-") as made:
        directory = Path(made)
        (directory / "objects" / S3.bucket).mkdir(parents=True)
        host = f"{place.address}:{free_port()}"
        command = ["versitygw", "--access", key, "--secret", secret, "--port", host, "posix", str(directory / "objects")]
        async with _running(place, command, host, directory / "log"):
            yield S3(host, directory / "objects", directory / "log", key, secret)


@asynccontextmanager
async def registry(place: Place = HERE, *, private: bool = False) -> AsyncIterator[Registry]:
    """Run an OCI registry without TLS. private: require a user and password."""
    with tempfile.TemporaryDirectory(prefix="multistep-registry-") as made:
        found = registry_at(Path(made), f"{place.address}:{free_port()}", private=private)
        async with _running(place, registry_command(found), found.host, found.log):
            yield found


def registry_at(directory: Path, host: str, *, private: bool) -> Registry:
    """Return a registry with its files in a directory, and write its configuration. It does not run yet."""
    user, password = ("somebody", "registry-password") if private else ("", "")
    config: dict[str, Any] = {
        "version": 0.1,
        "storage": {"filesystem": {"rootdirectory": str(directory / "objects")}, "delete": {"enabled": True}},
        "http": {"addr": host},
    }
    if private:
        (directory / "users").write_text(f"{user}:$2b$04$z61BpWl40eGgaoX5AJ/zeueP78vroVfaOIx9y2uDCVSh9eIYhKQ3e\n")
        config["auth"] = {"htpasswd": {"realm": "registry", "path": str(directory / "users")}}
    (directory / "config.yml").write_text(json.dumps(config))
    return Registry(host, directory / "objects", directory / "log", user, password)


def registry_command(registry: Registry) -> list[str]:
    """Return the command that runs a registry."""
    return ["docker-registry", "serve", str(registry.log.with_name("config.yml"))]


@asynccontextmanager
async def model(place: Place = HERE) -> AsyncIterator[Server]:
    """Run the scripted model server; see tests.support.fake_model."""
    with tempfile.TemporaryDirectory(prefix="multistep-model-") as made:
        port, directory = free_port(), Path(made)
        here = f"PYTHONPATH={ROOT}"  # needed, because a program in the node's namespaces starts in /
        command = ["env", here, sys.executable, "-m", "tests.support.fake_model", "--host", place.address, "--port", str(port)]
        async with _running(place, command, f"{place.address}:{port}", directory / "log"):
            yield Server(f"{place.address}:{port}", directory, directory / "log")


@asynccontextmanager
async def git(place: Place = HERE) -> AsyncIterator[Server]:
    """Serve bare repositories and files in ``directory`` over HTTP; see tests.support.git_server."""
    with tempfile.TemporaryDirectory(prefix="multistep-git-") as made:
        directory, host = Path(made) / "served", f"{place.address}:{free_port()}"
        directory.mkdir()
        command = [sys.executable, str(ROOT / "tests" / "support" / "git_server.py"), host, str(directory)]
        async with _running(place, command, host, Path(made) / "log"):
            yield Server(host, directory, Path(made) / "log")


@asynccontextmanager
async def prometheus(config: Mapping[str, Any], place: Place = HERE) -> AsyncIterator[Server]:
    """Run Prometheus with this configuration, in which paths are paths on the test's machine."""
    with tempfile.TemporaryDirectory(prefix="multistep-prometheus-") as made:
        directory, host = Path(made), f"{place.address}:{free_port()}"
        (directory / "prometheus.yml").write_text(json.dumps(config))
        command = [
            "prometheus",
            f"--config.file={directory / 'prometheus.yml'}",
            f"--storage.tsdb.path={directory / 'data'}",
            f"--web.listen-address={host}",
        ]
        async with _running(place, command, host, directory / "log"):
            await _ready(f"http://{host}/-/ready")  # Prometheus listens before it can answer
            yield Server(host, directory / "data", directory / "log")


@asynccontextmanager
async def kube_state_metrics(config: Path, place: Place = HERE) -> AsyncIterator[Server]:
    """Run kube-state-metrics for custom resources only, with this configuration. It uses $KUBECONFIG."""
    with tempfile.TemporaryDirectory(prefix="multistep-ksm-") as made:
        directory, port, own_port = Path(made), free_port(), free_port()
        command = [
            "kube-state-metrics",
            f"--kubeconfig={os.environ['KUBECONFIG']}",
            "--custom-resource-state-only",
            f"--custom-resource-state-config-file={config}",
            f"--host={place.address}",
            f"--port={port}",
            f"--telemetry-host={place.address}",
            f"--telemetry-port={own_port}",
        ]
        async with _running(place, command, f"{place.address}:{port}", directory / "log"):
            yield Server(f"{place.address}:{port}", directory, directory / "log")


@asynccontextmanager
async def _running(place: Place, command: Sequence[str], host: str, log: Path) -> AsyncIterator[None]:
    """Run a program, yield once it listens, and stop it with SIGTERM afterwards."""
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(*place.prefix, *command, cwd=ROOT, stdout=output, stderr=output)
    try:
        await _listening(process, host, log)
        yield
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


async def _listening(process: asyncio.subprocess.Process, host: str, log: Path) -> None:
    address, _, port = host.rpartition(":")
    async with asyncio.timeout(START_SECONDS):
        while True:
            assert process.returncode is None, f"the server ended: {_text(log)}"
            with suppress(OSError):
                _, writer = await asyncio.open_connection(address, int(port))
                writer.close()
                await writer.wait_closed()
                return
            await asyncio.sleep(0.05)


async def _ready(url: str) -> None:
    async with asyncio.timeout(START_SECONDS), aiohttp.ClientSession() as session:
        while True:
            async with session.get(url) as response:
                if response.status == 200:
                    return
            await asyncio.sleep(0.05)


def _text(log: Path) -> str:
    return log.read_text(errors="replace")


_reserved: list[socket.socket] = []


@atexit.register
def _release() -> None:
    for each in _reserved:
        each.close()


def free_port() -> int:
    """Return a free port that no other test process gets before this one exits.

    A server stops and starts again on its port, so the port is not an ephemeral one, which any connection could take in between.
    """
    while True:
        port = random.choice(_PORTS)
        with suppress(OSError):
            _bind("127.0.0.1", port).close()
            _reserved.append(_bind("127.0.0.2", port))  # no server listens there; what counts is that only one process can bind it
            return port


def _bind(address: str, port: int) -> socket.socket:
    listener = socket.socket()
    try:
        listener.bind((address, port))
    except OSError:
        listener.close()
        raise
    return listener
