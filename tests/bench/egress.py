"""Measure the egress sidecar: trials with and without it, switches of a pod's network, and requests through it."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Final

from rich.table import Table

from multistep.api.task.task_toml import parse_task
from multistep.api.trial.trial import parse_trial
from multistep.engine.plan.network_types import Network
from multistep.kube.resources import PODS
from multistep.pods import egress_sidecar as sidecar
from multistep.pods import pod_manifest as pods
from multistep.pods.pod_identity import CONTAINER
from multistep.reconcile.trial.sidecar_sessions import ask
from multistep.settings import Settings
from tests.bench.example import EXAMPLE, Example
from tests.bench.measure import start_pod, time_ratio, until_without_pods
from tests.bench.trials import line, spread
from tests.support import servers

COUNTS: Final = (1, 8)
ROUNDS: Final = 3
SWITCHES: Final = 60
REQUESTS: Final = 300
MAX_RATIO: Final = 1.1  # maximum wall time of trials with a sidecar, relative to trials without
MAX_SWITCH_SECONDS: Final = 1.0  # maximum duration of a switch of the network, at the 95th percentile
MAX_REQUEST_SECONDS: Final = 0.005  # maximum time that the sidecar adds to a request, at the median
_LIMITS: Final[Mapping[str, Mapping[str, str]]] = {
    "no network": {"[environment]": 'network_mode = "no-network"'},
    "none for agents only": {"[steps.agent]": 'network_mode = "no-network"'},
}
_NAME: Final = "web"
# Prints the seconds of each request. A request is a DNS lookup, a connection and an answer.
_ASKS: Final = """
import sys, time, urllib.request
for _ in range(int(sys.argv[2])):
    start = time.monotonic()
    urllib.request.urlopen(sys.argv[1]).read()
    print(time.monotonic() - start)
"""

Object = dict[str, Any]


@dataclass(frozen=True)
class Found:
    """All measurements. ratios: wall times of trials with a sidecar relative to trials without, by the network's restriction (key
    of _LIMITS) and number of trials; switches: seconds that each change of a pod's network took;
    direct, limited: seconds of each request without and with the sidecar."""

    ratios: Mapping[tuple[str, int], Sequence[float]]
    switches: Sequence[float]
    direct: Sequence[float]
    limited: Sequence[float]

    @property
    def added(self) -> float:
        """Return the seconds that the sidecar adds to the median request."""
        return median(self.limited) - median(self.direct)


async def measure(example: Example, settings: Settings) -> Found:
    """Run all measurements."""
    plain = await example.trial("plain")
    ratios = {}
    for number, (name, changes) in enumerate(_LIMITS.items()):
        limited = await example.trial(f"limited-{number}", partial(_limit, changes))
        for count in COUNTS:
            ratios[name, count] = [
                await time_ratio(example.client, example.namespace, plain, limited, count) for _ in range(ROUNDS)
            ]
    async with servers.git(servers.node()) as server:
        url = await _served(example, server)
        async with _pod(example, plain, settings, limited=False) as name:
            direct = await _requests(example, name, url)
        async with _pod(example, plain, settings, limited=True) as name:
            switches = [await _switch(example, name, number) for number in range(SWITCHES)]
            limited_requests = await _requests(example, name, url)
    return Found(ratios, switches, direct, limited_requests)


def _limit(changes: Mapping[str, str], directory: Path) -> None:
    """Add lines to the task's task.toml. changes: the line to add, by table header."""
    file = directory / "task.toml"
    text = file.read_text()
    for table, line_ in changes.items():
        text = text.replace(f"{table}\n", f"{table}\n{line_}\n")
    file.write_text(text)


@asynccontextmanager
async def _pod(example: Example, trial: Object, settings: Settings, *, limited: bool) -> AsyncIterator[str]:
    """Run a pod like a trial's pod, with the operator's image, and yield its name. limited: whether it has a sidecar."""
    parsed = parse_trial({**trial, "status": {"podName": "idle", "attempt": 1}})
    task = parse_task((EXAMPLE / "task.toml").read_text())
    network = Network("allowlist", (_NAME,)) if limited else Network()
    request = pods.PodRequest(
        parsed, task.environment, settings.operator_image, "bench", settings, network=network, sidecar=limited
    )
    pod = pods.pod_manifest(request)
    pod["metadata"] = {"name": "idle", "labels": {"bench": "idle"}}
    name = "limited" if limited else "direct"
    await start_pod(example.client, example.namespace, pod, name)
    yield name
    await example.client.delete(PODS, example.namespace, name)
    await until_without_pods(example.client, example.namespace, "bench=idle")


async def _served(example: Example, server: servers.Server) -> str:
    """Give a server on the node a name in the cluster, and return the URL of a file there."""
    (server.directory / "file").write_text("x" * 1000)
    address, _, port = server.host.partition(":")
    labels = {"kubernetes.io/service-name": _NAME}
    slice_ = {"addressType": "IPv4", "ports": [{"port": int(port)}], "endpoints": [{"addresses": [address]}]}
    metadata = {"name": _NAME, "namespace": example.namespace}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": metadata}
    await example.client.create({**service, "spec": {"clusterIP": "None", "ports": [{"port": int(port)}]}})
    made = {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": {**metadata, "labels": labels}}
    await example.client.create({**made, **slice_})
    return f"http://{_NAME}:{port}/files/file"


async def _switch(example: Example, pod: str, number: int) -> float:
    """Switch the pod's network through a new exec session, as the operator does for the first switch of each ``Driver.drive`` call;
    return the seconds."""
    client, start = example.client, time.monotonic()
    hosts = [_NAME] if number % 2 else []
    request = {"id": f"1/bench/{number}", "mode": "allowlist" if hosts else "no-network", "hosts": hosts, "gateway": False}
    stream = await client.open_exec(example.namespace, pod, sidecar.CONTAINER, sidecar.CALL)
    answer = await ask(pod, stream, json.dumps(request).encode() + b"\n")
    seconds = time.monotonic() - start
    await stream.close()
    if "error" in answer:
        raise RuntimeError(f"switch {number}: {answer['error']}")
    return seconds


async def _requests(example: Example, pod: str, url: str) -> list[float]:
    stream = await example.client.open_exec(example.namespace, pod, CONTAINER, ("python3", "-c", _ASKS, url, str(REQUESTS)))
    printed = b""
    while chunk := await stream.receive():
        printed += chunk
    await stream.close()
    seconds = [float(each) for each in printed.split()]
    if len(seconds) != REQUESTS:
        raise RuntimeError(f"{pod}: {len(seconds)} requests of {REQUESTS} were answered: {stream.exit_details}")
    return seconds


def _p95(seconds: Sequence[float]) -> float:
    return quantiles(seconds, n=20)[-1]


def table(found: Found) -> Table:
    """Return a table of the measurements."""
    made = Table("measurement", "p50", "p95", title="egress")
    for name, seconds in (("switch", found.switches), ("request", found.direct), ("request, sidecar", found.limited)):
        made.add_row(f"{name}, ms", f"{median(seconds) * 1e3:.1f}", f"{_p95(seconds) * 1e3:.1f}")
    return made


def judgement(found: Found) -> Sequence[str]:
    """Return one line per limit. A slow run does not fail the bench, because times depend on the machine."""
    ratios = [
        line(median(each) <= MAX_RATIO, f"{count} trials, {name}: {spread(each, 2)} times as long, at most {MAX_RATIO:g}")
        for (name, count), each in found.ratios.items()
    ]
    switch, added = _p95(found.switches), found.added
    return [
        *ratios,
        line(switch <= MAX_SWITCH_SECONDS, f"a switch takes {switch:.2f} s at p95, at most {MAX_SWITCH_SECONDS:g}"),
        line(
            added <= MAX_REQUEST_SECONDS,
            f"a request takes {added * 1e3:.1f} ms longer at p50, at most {MAX_REQUEST_SECONDS * 1e3:g}",
        ),
    ]
