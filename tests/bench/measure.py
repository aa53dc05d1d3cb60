"""Measure idle pods and trials, and read the operator's counters."""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, fields, replace
from statistics import fmean
from typing import Any, Self

from multistep.cli.doctor.observe import is_ready
from multistep.client.reconnecting_watch import WatchingClient
from multistep.engine.journal.operations import Source
from multistep.kube.resources import PODS, TRIALS, Resource
from multistep.pods.pod_identity import CONTAINER, LABEL_TRIAL
from multistep.pods.pod_manifest import RUNNER_CALL
from multistep.runner_client.session import Session
from tests.e2e.given import finished
from tests.e2e.operators import samples
from tests.support.tar_streams import one_large_file
from tests.support.whole_status import whole

DEADLINE_SECONDS = 900.0
POLL_SECONDS = 0.2  # poll interval; polls read metadata only

Object = dict[str, Any]


@dataclass(frozen=True)
class Counters:
    """The operator's counters at one moment; the difference of two is the cost of a run."""

    execs: float
    requests: float
    status_writes: float
    cpu_seconds: float
    peak_bytes: float

    def since(self, start: Counters) -> Counters:
        """Return the differences from `start`. `peak_bytes` is no difference, but the peak since the operator's start."""
        differences = {each.name: getattr(self, each.name) - getattr(start, each.name) for each in fields(self)}
        return replace(Counters(**differences), peak_bytes=self.peak_bytes)

    @classmethod
    def mean(cls, found: Sequence[Self]) -> Self:
        """Return the mean of several runs' costs, with the largest peak."""
        means = {each.name: fmean(getattr(one, each.name) for one in found) for each in fields(cls)}
        return replace(cls(**means), peak_bytes=max(each.peak_bytes for each in found))


async def counters(client: WatchingClient) -> Counters:
    """Return the operator's counters, scraped through the API server. Requests for Leases are excluded: no trial causes them."""
    totals: dict[str, float] = {}
    for sample, value in (await samples(client)).items():
        if 'resource="leases"' not in sample:
            name = sample.split("{")[0]
            totals[name] = totals.get(name, 0.0) + value
    return Counters(
        execs=totals["multistep_exec_sessions_total"],
        requests=totals["multistep_api_requests_total"],
        status_writes=totals["multistep_status_writes_total"],
        cpu_seconds=totals["process_cpu_seconds_total"],
        peak_bytes=totals["multistep_peak_memory_bytes"],
    )


async def api_server_execs(client: WatchingClient) -> float:
    """Return the number of finished exec sessions at the API server, by all clients."""
    found = await samples(client, "/metrics")
    return sum(
        value for name, value in found.items() if name.startswith("apiserver_request_total{") and 'subresource="exec"' in name
    )


async def time_pods(
    client: WatchingClient, namespace: str, pod: Mapping[str, Any], count: int, done: Callable[[Object], bool] | None = None
) -> float:
    """Return the seconds to create pods, see all of them ready, delete them and see them gone.

    done: returns whether a pod has finished its work. If given, each pod is deleted as soon as its work is finished, like a
    trial's pod, instead of when all are ready.
    """
    names = [f"idle-{number}" for number in range(count)]
    start = time.monotonic()
    await asyncio.gather(*(client.create(_named(pod, namespace, name)) for name in names))
    if done is None:
        await _until_all(client, PODS, namespace, count, is_ready)
        await asyncio.gather(*(client.delete(PODS, namespace, name) for name in names))
    else:
        await _delete_each(client, namespace, count, done)
    await until_without_pods(client, namespace, "bench=idle")
    return time.monotonic() - start


async def time_trials(client: WatchingClient, namespace: str, trial: Mapping[str, Any], count: int) -> float:
    """Return the seconds to create trials, see all finished and their pods gone. Raise RuntimeError if a trial failed."""
    names = [f"bench-{number}" for number in range(count)]
    start = time.monotonic()
    await asyncio.gather(*(client.create(_named(trial, namespace, name)) for name in names))
    await _until_all(client, TRIALS, namespace, count, finished)
    await until_without_pods(client, namespace, LABEL_TRIAL)
    seconds = time.monotonic() - start
    for found in await client.list_all(TRIALS, namespace):
        status = whole(found)["status"]
        gates = [each.get("gate") for each in status.get("steps", [])]
        if not status.get("rewards") or status.get("exception") or False in gates:
            raise RuntimeError(f"{found['metadata']['name']} went wrong: {status}")
    return seconds


async def time_ratio(
    client: WatchingClient, namespace: str, trial: Mapping[str, Any], other: Mapping[str, Any], count: int
) -> float:
    """Return the wall time of ``count`` trials of `other`, relative to the mean of two runs of ``count`` trials of `trial`: one
    before and one after."""
    seconds = []
    for each in (trial, other, trial):
        seconds.append(await time_trials(client, namespace, each, count))
        await remove_trials(client, namespace)
    return seconds[1] / ((seconds[0] + seconds[2]) / 2)


@dataclass(frozen=True)
class TransferCost:
    """Cost of sending a file into a pod and back. grown_bytes: growth of the bench process's peak memory."""

    size: int
    upload_seconds: float
    download_seconds: float
    grown_bytes: int


async def start_pod(client: WatchingClient, namespace: str, pod: Mapping[str, Any], name: str) -> str:
    """Create a pod in a namespace without other pods, wait until it is ready, and return its UID."""
    uid = str((await client.create(_named(pod, namespace, name)))["metadata"]["uid"])
    await _until_all(client, PODS, namespace, 1, is_ready)
    return uid


async def transfer(client: WatchingClient, namespace: str, pod: Mapping[str, Any], size: int) -> TransferCost:
    """Send a file into a new pod and fetch it back, without keeping it in memory."""
    name = f"transfer-{size}"
    uid = await start_pod(client, namespace, pod, name)
    stream = await client.open_exec(namespace, name, CONTAINER, RUNNER_CALL)
    before = _peak_bytes()
    async with Session(stream, pod_uid=uid, answer_timeout_seconds=DEADLINE_SECONDS) as session:
        await session.hello()
        start = time.monotonic()
        await session.upload("1/bench/upload", "/tmp/bench", one_large_file("file", size))
        sent = time.monotonic()
        found = await session.download([Source("/tmp/bench/file")], lambda _: None)
        came = time.monotonic()
    if found.size < size:
        raise RuntimeError(f"of a file of {size} bytes {found.size} came back")
    await client.delete(PODS, namespace, name)
    await until_without_pods(client, namespace, "bench=idle")
    return TransferCost(size, sent - start, came - sent, _peak_bytes() - before)


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


async def until_without_pods(client: WatchingClient, namespace: str, selector: str) -> None:
    """Wait until all pods with these labels are gone."""

    async def gone() -> bool:
        return not await client.list_metadata(PODS, namespace, label_selector=selector)

    await _until(gone)


async def remove_trials(client: WatchingClient, namespace: str) -> None:
    """Delete all trials of the namespace and wait until they are gone."""
    for found in await client.list_all(TRIALS, namespace):
        await client.delete(TRIALS, namespace, found["metadata"]["name"])
    await _until(lambda: _no_trials(client, namespace))


def _named(manifest: Mapping[str, Any], namespace: str, name: str) -> Object:
    return {**manifest, "metadata": {**manifest.get("metadata", {}), "namespace": namespace, "name": name}}


async def _until(done: Any) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not await done():
            await asyncio.sleep(POLL_SECONDS)


async def _until_all(client: WatchingClient, resource: Resource, namespace: str, count: int, so: Callable[[Object], bool]) -> None:
    """Wait until `so` is true for `count` objects at once. Use a watch, because repeated lists would distort the measurement."""
    there: set[str] = set()
    async with asyncio.timeout(DEADLINE_SECONDS), aclosing(client.watch(resource, namespace)) as events:
        async for event in events:
            name = event.object["metadata"]["name"]
            there.discard(name)
            if event.type != "DELETED" and so(event.object):
                there.add(name)
            if len(there) == count:
                return


async def _delete_each(client: WatchingClient, namespace: str, count: int, done: Callable[[Object], bool]) -> None:
    """Delete each pod as soon as `done` is true for it, until `count` are deleted."""
    deleted: set[str] = set()
    async with asyncio.timeout(DEADLINE_SECONDS), aclosing(client.watch(PODS, namespace)) as events:
        async for event in events:
            name = event.object["metadata"]["name"]
            if name not in deleted and event.type != "DELETED" and done(event.object):
                deleted.add(name)
                await client.delete(PODS, namespace, name)
            if len(deleted) == count:
                return


async def _no_trials(client: WatchingClient, namespace: str) -> bool:
    return not await client.list_metadata(TRIALS, namespace)
