"""Upload a large artifact to an object store, and compare with a plain copy of the same size to the same server."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import tempfile
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import obstore
from obstore.store import S3Store

from multistep.client.reconnecting_watch import WatchingClient
from multistep.kube.resources import TRIALS
from tests.e2e.given import Step, finished, in_agent, trial
from tests.e2e.operators import with_variables
from tests.e2e.test_store import MIB, Store, digest_of
from tests.support import servers

SIZE = 2048 * MIB
MIN_RATIO = 0.5  # minimum speed of the upload, relative to a plain copy
MAX_GROWTH_BYTES = 16 * MIB  # limit on the growth of the operator's memory during the upload
_PIECE = 16 * MIB
_POLL_SECONDS = 0.1
_DEADLINE_SECONDS = 900.0
_RSS, _PEAK = "VmRSS", "VmHWM"
# `sync` writes the agent's data to disk before the measurement starts. `sleep` makes the agent phase appear in the trial's status:
# the operator does not report a phase that finishes while the exec session that started the phase is open.
_SOLVE = f"""#!/bin/bash
cd /logs/artifacts
head -c {_PIECE} /dev/urandom > /tmp/piece
for _ in $(seq {SIZE // _PIECE}); do cat /tmp/piece; done > large
sync large
sleep 10
"""

Object = dict[str, Any]


@dataclass(frozen=True)
class Cost:
    """Cost of the upload. seconds: from the end of the agent to the end of the trial; plain: seconds of the plain copies before
    and after the upload; grown_bytes: the operator's peak memory minus its memory while the agent was running."""

    seconds: float
    plain: tuple[float, float]
    grown_bytes: int

    @property
    def plain_seconds(self) -> float:
        return sum(self.plain) / len(self.plain)

    @property
    def ratio(self) -> float:
        """Return the upload's speed relative to that of a plain copy."""
        return self.plain_seconds / self.seconds

    @property
    def holds(self) -> bool:
        """Return whether the upload is within the limits on speed and memory."""
        return self.ratio >= MIN_RATIO and self.grown_bytes < MAX_GROWTH_BYTES


async def artifact(client: WatchingClient, namespace: str) -> Cost:
    """Configure the cluster's operator to use a real S3 server, measure how it uploads an artifact, and undo the configuration."""
    async with servers.s3(servers.node()) as server:
        variables = {"MULTISTEP_RESULTS_STORE": f"s3://{server.bucket}/e2e", **server.environment}
        with tempfile.NamedTemporaryFile(prefix="multistep-bench-") as file, with_variables(variables):
            await asyncio.to_thread(_fill, Path(file.name))
            await _ended(client, namespace, trial(Step("a"), name="warm"))  # not measured: it has one-time costs
            before = await asyncio.to_thread(copy_plainly, server, Path(file.name))
            seconds, grown = await _send(client, namespace, Store(server))
            after = await asyncio.to_thread(copy_plainly, server, Path(file.name))
    return Cost(seconds, (before, after), grown)


async def _send(client: WatchingClient, namespace: str, store: Store) -> tuple[float, int]:
    """Run a trial with a large artifact; return the upload's seconds and the operator's memory growth in bytes."""
    created = await client.create(_in(trial(Step("a", solve=_SOLVE), name="large"), namespace))
    await _until(client, created, in_agent)
    await _operator("sh", "-c", "echo 5 > /proc/1/clear_refs")  # resets VmHWM, the operator's peak memory
    held = await _memory(_RSS)
    await _until(client, created, lambda found: not in_agent(found))
    started = time.monotonic()
    done = await _until(client, created, finished)
    seconds = time.monotonic() - started
    grown = await _memory(_PEAK) - held
    lines = [json.loads(line) for line in (store.of(done) / "manifest.jsonl").read_text().splitlines()]
    [line] = [each for each in lines if each.get("path") == "steps/a/artifacts/large"]
    digest = await asyncio.to_thread(digest_of, store.of(done) / line["object"])
    if not line["object"].startswith("sent/") or (line["size"], line["sha256"]) != (SIZE, digest):
        raise RuntimeError(f"it did not go straight to the store, or is not what it was: {line}, {digest}")
    return seconds, grown


async def _ended(client: WatchingClient, namespace: str, manifest: Object) -> Object:
    return await _until(client, await client.create(_in(manifest, namespace)), finished)


async def _until(client: WatchingClient, created: Object, reached: Any) -> Object:
    metadata = created["metadata"]
    async with asyncio.timeout(_DEADLINE_SECONDS):
        while True:
            there = {each["metadata"]["uid"]: each for each in await client.list_all(TRIALS, metadata["namespace"])}
            found = there[metadata["uid"]]
            if reached(found):
                return found
            await asyncio.sleep(_POLL_SECONDS)


def _in(manifest: Object, namespace: str) -> Object:
    return {**manifest, "metadata": {**manifest["metadata"], "namespace": namespace}}


async def _memory(field: str) -> int:
    """Return a field of /proc/1/status in the operator's container, in bytes."""
    status = await _operator("cat", "/proc/1/status")
    [line] = [each for each in status.splitlines() if each.startswith(f"{field}:")]
    return int(line.split()[1]) * 1024


async def _operator(*command: str) -> str:
    """Run a command in the operator's container and return its stdout."""
    kubectl = ("kubectl", "-n", "multistep-system", "exec", "deployment/multistep", "--", *command)
    process = await asyncio.create_subprocess_exec(*kubectl, stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} in the operator's container: exit code {process.returncode}")
    return out.decode()


def _fill(file: Path) -> None:
    piece = os.urandom(_PIECE)
    with file.open("wb") as opened:
        for _ in range(SIZE // _PIECE):
            opened.write(piece)
        opened.flush()
        os.fsync(opened.fileno())


def copy_plainly(server: servers.S3, file: Path) -> float:
    """Upload the file to the server with one PUT request, and return the seconds that it takes."""
    client = S3Store(
        server.bucket, endpoint=server.url, access_key_id=server.access_key, secret_access_key=server.secret_key,
        region=server.region, client_options={"allow_http": True},
    )  # fmt: skip
    address = urlsplit(obstore.sign(client, "PUT", "plain", timedelta(hours=1)))
    connection = http.client.HTTPConnection(address.netloc, blocksize=MIB)
    with file.open("rb") as opened:
        started = time.monotonic()
        headers = {"Content-Length": str(file.stat().st_size)}
        connection.request("PUT", f"{address.path}?{address.query}", body=opened, headers=headers)
        answer = connection.getresponse()
        answer.read()
    if answer.status != 200:
        raise RuntimeError(f"the store answered {answer.status}")
    return time.monotonic() - started
