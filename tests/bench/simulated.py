"""Many trials at once in one replica, on simulated nodes: what each costs the operator and the API server."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from multistep.cli.manifests import TrialImage, TrialRequest, bundle_config_maps, trial_manifest
from multistep.cluster.client import Client
from multistep.cluster.resources import TRIALS
from multistep.errors import ClusterError
from multistep.sources.bundle import digest_of, pack
from tests.bench.simulation.nodes import placement, simulated_nodes
from tests.bench.simulation.runners import Simulation
from tests.e2e.operators import samples

DEADLINE_SECONDS: Final = 1200.0
LOOK_SECONDS: Final = 1.0
CREATING: Final = 16  # trials that are created at the same moment
NODES: Final = 10
STEPS: Final = ("first", "last")

Object = dict[str, Any]
Samples = dict[str, float]
WRITES = ("create", "replace", "apply", "patch", "delete")


@dataclass(frozen=True)
class Round:
    """What one round cost. Seconds, and per trial where it says so."""

    admit_seconds: float
    finish_seconds: float
    cpu_seconds: float
    peak_bytes: float
    rss_bytes: float
    writes: float
    requests: float
    execs: float
    open_execs: float  # while all agents worked
    lags: list[float]


def task(directory: Path) -> Path:
    """A task of two steps; nothing of it is ever run."""
    root = directory / "simulated"
    root.mkdir()
    (root / "task.toml").write_text("".join(f'[[steps]]\nname = "{name}"\n' for name in STEPS))
    for name in STEPS:
        for file in ("instruction.md", "solution/solve.sh", "tests/test.sh"):
            path = root / "steps" / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("echo simulated\n")
    return root


async def measure(
    client: Client, namespace: str, count: int, *, rounds: int, rate: float, told: Callable[[str], object]
) -> list[Round]:
    """Rounds of as many trials at once. rate: agents that end in a second."""
    names = [f"simulated-{number}" for number in range(count)]
    with tempfile.TemporaryDirectory(prefix="multistep-simulation-") as directory:
        socket = Path(directory) / "runners"
        trial = await _task_in_cluster(client, namespace, Path(directory))
        async with (
            Simulation(client, namespace, socket, held=f"{STEPS[-1]}/agent") as simulation,
            simulated_nodes(client, namespace, [f"{name}-1" for name in names], socket, count=NODES),
        ):
            return [await _round(client, namespace, trial, names, simulation, rate, told) for _ in range(rounds)]


async def _task_in_cluster(client: Client, namespace: str, directory: Path) -> Object:
    packed = pack(task(directory))
    digest = digest_of(packed)
    maps = bundle_config_maps(packed, "simulated", digest, namespace)
    for config_map in maps:
        await client.create(config_map)
    names = [each["metadata"]["name"] for each in maps]
    image = TrialImage("simulated", runner=True)
    request = TrialRequest(name="simulated", task_name="simulated", digest=digest, config_maps=names, agent="oracle", image=image)
    trial = trial_manifest(request)
    trial["spec"]["environment"]["podTemplate"] = {"spec": placement()}
    trial["spec"]["podCleanup"] = "Always"
    return trial


async def _round(
    client: Client,
    namespace: str,
    trial: Object,
    names: list[str],
    simulation: Simulation,
    rate: float,
    told: Callable[[str], object],
) -> Round:
    simulation.lags.clear()
    before, began = await scrape(client), time.monotonic()
    await _each(
        names, lambda name: client.create({**trial, "metadata": {**trial["metadata"], "namespace": namespace, "name": name}})
    )
    told(f"{len(names)} trials were created within {time.monotonic() - began:.0f} s")
    await _until(lambda: len(simulation.working) >= len(names), lambda: f"{len(simulation.working)} agents work", told)
    admitted = time.monotonic()
    await _until(lambda: simulation.open_sessions == 0, lambda: f"{simulation.open_sessions} sessions are open", told)
    await asyncio.sleep(2 * LOOK_SECONDS)
    live = await scrape(client)
    told(f"{len(names)} agents work after {admitted - began:.0f} s; {live['multistep_execs_open']:.0f} execs are open")
    released = time.monotonic()
    for number, pod in enumerate(simulation.working):
        await asyncio.sleep(max(0.0, released + number / rate - time.monotonic()))
        simulation.release(pod)
    await _until_finished(client, len(names) + before.get("multistep_trials_finished_total", 0.0), told)
    finished, after = time.monotonic(), await scrape(client)
    told(f"all are over after {finished - began:.0f} s")
    await _verify(client, namespace)
    await _each(names, lambda name: client.delete_trial(namespace, name))
    await _until_gone(client, namespace, told)

    def spent(name: str) -> float:
        return after.get(name, 0.0) - before.get(name, 0.0)

    writes = sum(spent(f"multistep_api_requests_total/{verb}") for verb in WRITES)
    return Round(
        admit_seconds=admitted - began,
        finish_seconds=finished - released,
        cpu_seconds=spent("process_cpu_seconds_total"),
        peak_bytes=after["multistep_peak_memory_bytes"],
        rss_bytes=after["process_resident_memory_bytes"],
        writes=writes,
        requests=spent("multistep_api_requests_total"),
        execs=spent("multistep_execs_total"),
        open_execs=live["multistep_execs_open"],
        lags=sorted(simulation.lags),
    )


async def scrape(client: Client) -> Samples:
    """The operator's metrics: totals by name, and those of requests by verb, too."""
    totals: Samples = {}
    for sample, value in (await samples(client)).items():
        name, _, labels = sample.partition("{")
        verb = labels.partition('verb="')[2].partition('"')[0]
        for key in {name, f"{name}/{verb}"}:
            totals[key] = totals.get(key, 0.0) + value
    return totals


async def _verify(client: Client, namespace: str) -> None:
    """Each trial is Complete with its reward after one attempt, and what the bench measured is what was promised."""
    for found in await client.list_trials(namespace):
        status = found["status"]
        if status["phase"] != "Complete" or status.get("rewards") != {"reward": 1.0} or status["attempt"] != 1:
            raise RuntimeError(f"{found['metadata']['name']} went wrong: {status}")


async def _each(names: Iterable[str], act: Callable[[str], Awaitable[object]]) -> None:
    waiting = iter(names)

    async def work() -> None:
        for name in waiting:
            await act(name)

    await asyncio.gather(*(work() for _ in range(CREATING)))


async def _until(done: Callable[[], bool], state: Callable[[], str], told: Callable[[str], object]) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        looks = 0
        while not done():
            await asyncio.sleep(LOOK_SECONDS)
            if (looks := looks + 1) % 30 == 0:
                told(state())


async def _until_finished(client: Client, count: float, told: Callable[[str], object]) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while (finished := (await scrape(client)).get("multistep_trials_finished_total", 0.0)) < count:
            told(f"{finished:.0f} of {count:.0f} finished")
            await asyncio.sleep(3 * LOOK_SECONDS)


async def _until_gone(client: Client, namespace: str, told: Callable[[str], object]) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while True:
            try:
                left = len(await client.list_metadata(TRIALS, namespace))
            except ClusterError:
                left = -1
            if not left:
                return
            told(f"{left} trials are left")
            await asyncio.sleep(3 * LOOK_SECONDS)
