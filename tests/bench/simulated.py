"""Run many concurrent trials with one operator replica on a simulated node. Measure their cost for operator and API server.

Also measure the size of a trial with many steps.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rich.table import Table

from multistep.client.reconnecting_watch import WatchingClient
from multistep.client.submit.manifests import TrialImage, bundle_config_maps, bundle_source, environment, placed, trial_manifest
from multistep.engine.status.status_size import status_bytes
from multistep.kube.resources import PODS, TRIALS
from multistep.sources.task.bundle import digest_of, pack_directory
from tests.e2e.given import finished
from tests.e2e.operators import samples
from tests.support.played import rewarded
from tests.support.simulation.kubelet import placement
from tests.support.simulation.node import node
from tests.support.simulation.runners import Runners, SimulatedRunner

DEADLINE_SECONDS: Final = 1500.0
POLL_SECONDS: Final = 1.0
CONCURRENCY: Final = 16  # maximum number of the bench's own concurrent requests
NODE: Final = "simulated"
PROBE_SECONDS: Final = 1.0  # period of the simulated kubelet's readiness probes
STEPS: Final = ("first", "last")
MANY_STEPS: Final = 100
ROUNDS: Final = 2
REWARDS: Final = {"reward": 0.833333, "correctness": 0.75, "style": 0.916667, "tests-passed": 41}

MIN_ADMITTED: Final = 20.0  # minimum number of trials per second that get their pod
MAX_BYTES: Final = 1 << 30
MAX_GROWTH: Final = 1.05  # maximum ratio of the operator's resident memory after the last round to that after the first
MAX_WRITES: Final = 12 + 3 * len(STEPS)  # maximum API writes per trial, without Events
MAX_RESOURCE_BYTES: Final = 64 << 10

Object = dict[str, Any]
Samples = dict[str, float]
_WRITES = ("create", "replace", "apply", "patch", "delete")


def count() -> int:
    """Return the number of concurrent trials: BENCH_TRIALS, or 5000."""
    return int(os.environ.get("BENCH_TRIALS") or 5000)


@dataclass(frozen=True)
class Round:
    """Cost of one round, in which all trials run once.

    admit_seconds, start_seconds: time from the round's start until each trial had its pod, and until all agents ran;
    finish_seconds: time from the first agent's end until all trials finished. lags: seconds from an agent's end to the start of its
    verifier. open_execs: exec streams that stayed open at the API server while all agents were running.
    """

    trials: int
    admit_seconds: float
    start_seconds: float
    finish_seconds: float
    cpu_seconds: float
    peak_bytes: float
    rss_bytes: float
    writes: float
    events: float
    requests: float
    execs: float
    open_execs: float
    lags: Sequence[float]

    @property
    def admitted(self) -> float:
        """Return trials admitted per second. A trial is admitted when it has its pod."""
        return self.trials / self.admit_seconds

    def lag(self, share: float) -> float:
        """Return the quantile `share` (0 to 1) of the lags, in seconds."""
        return sorted(self.lags)[min(len(self.lags) - 1, int(share * len(self.lags)))]

    def row(self) -> list[str]:
        each = [1000 * self.cpu_seconds, self.writes, self.events, self.requests, self.execs]
        return [
            f"{self.trials}",
            f"{self.admitted:.1f}",
            f"{self.trials / self.start_seconds:.1f}",
            f"{self.trials / self.finish_seconds:.1f}",
            *(f"{value / self.trials:.1f}" for value in each),
            f"{self.peak_bytes / 2**20:.0f}",
            f"{self.rss_bytes / 2**20:.0f}",
            f"{self.open_execs:.0f}",
            f"{self.lag(0.5):.2f}, {self.lag(0.99):.2f}",
        ]


TITLES: Final = (
    "trials at once",
    "admitted/s",
    "working/s",
    "finished/s",
    "operator CPU ms/trial",
    "writes/trial",
    "Events/trial",
    "requests/trial",
    "execs/trial",
    "peak MiB",
    "after MiB",
    "execs open while agents work",
    "lag p50, p99 s",
)


def table(found: Sequence[Round]) -> Table:
    """Return a table with one row per round."""
    made = Table(*TITLES)
    for each in found:
        made.add_row(*each.row())
    return made


def judgement(found: Sequence[Round], size: int) -> tuple[bool, list[str]]:
    """Return whether all limits hold, and one line per limit. size: bytes of a trial with many steps."""
    first, last = found[0], found[-1]
    promises = [
        (min(each.admitted for each in found) >= MIN_ADMITTED, f"at least {MIN_ADMITTED:g} trials a second are admitted"),
        (last.peak_bytes <= MAX_BYTES, f"at most {MAX_BYTES // 2**20} MiB of memory"),
        (last.rss_bytes <= first.rss_bytes * MAX_GROWTH, f"no growth in a second round (less than {MAX_GROWTH - 1:.0%})"),
        (all(each.open_execs == 0 for each in found), "no exec stream stays open while agents work"),
        (
            all(each.writes <= MAX_WRITES * each.trials for each in found),
            f"at most {MAX_WRITES} writes a trial, Events apart",
        ),
        (size <= MAX_RESOURCE_BYTES, f"a trial of {MANY_STEPS} steps has {size} bytes, at most {MAX_RESOURCE_BYTES}"),
    ]
    return all(holds for holds, _ in promises), [f"{'holds' if holds else 'DOES NOT HOLD'}: {words}" for holds, words in promises]


class Simulation:
    """The simulated runners. Agents of the last step work until ``release``; other phases finish at once."""

    def __init__(self) -> None:
        self.runners = Runners(self._works, probe_seconds=PROBE_SECONDS, stores=False)
        self._verdict = rewarded(json.dumps(REWARDS))
        self._working: dict[str, tuple[SimulatedRunner, str]] = {}  # by pod name: the runner whose agent works, and the phase's id
        self._ended_at: dict[str, float] = {}  # by UID of the pod: the event loop's time at the end of its released agent
        self.lags: list[float] = []  # seconds from an agent's end to the start of the next phase

    @property
    def working(self) -> list[str]:
        """Return the names of the pods whose agents are working."""
        return list(self._working)

    @property
    def released_and_waiting(self) -> int:
        """Return the number of agents that finished and whose next phase has not started yet."""
        return len(self._ended_at)

    def release(self, pod: str) -> None:
        """Finish the agent phase of a pod."""
        runner, id = self._working.pop(pod)
        self._ended_at[runner.pod_uid] = asyncio.get_running_loop().time()
        runner.end(id)

    def _works(self, runner: SimulatedRunner, request: Object) -> None:
        if (ended_at := self._ended_at.pop(runner.pod_uid, None)) is not None:
            self.lags.append(asyncio.get_running_loop().time() - ended_at)
        id = request["id"]
        if id.endswith(f"{STEPS[-1]}/agent"):
            self._working[runner.name] = (runner, id)
        else:
            runner.end(id, **(self._verdict if id.endswith("/verifier") else {}))


async def measure(client: WatchingClient, namespace: str) -> tuple[list[Round], int]:
    """Run all trials ROUNDS times. Return the cost of each round, and the size in bytes of a trial with many steps."""
    names = [f"simulated-{number}" for number in range(count())]
    with tempfile.TemporaryDirectory(prefix="multistep-simulation-") as directory:
        place, simulation = Path(directory), Simulation()
        few, many = [await _trial(client, namespace, place / name, steps) for name, steps in _tasks().items()]
        async with node(NODE, place, simulation.runners):
            size = await _size(client, namespace, many)
            return [await _round(client, namespace, few, names, simulation) for _ in range(ROUNDS)], size


def _tasks() -> dict[str, Sequence[str]]:
    """Return the step names of each task, by task name."""
    many = [f"step-{number:03}-reproduce-and-fix-the-reported-failure" for number in range(MANY_STEPS)]
    return {"few": STEPS, "many": many}


async def _trial(client: WatchingClient, namespace: str, directory: Path, steps: Sequence[str]) -> Object:
    """Return a trial for a simulated node, which does not execute its task; create the task's ConfigMaps."""
    name = directory.name
    for step in steps:
        for file in ("instruction.md", "solution/solve.sh", "tests/test.sh"):
            path = directory / "steps" / step / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("simulated\n")
    (directory / "task.toml").write_text("".join(f'[[steps]]\nname = "{step}"\n' for step in steps))
    packed = pack_directory(directory)
    digest = digest_of(packed)
    maps = bundle_config_maps(packed, name, digest)
    for config_map in maps:
        await client.create(placed(config_map, namespace))
    task, image = {"name": name, **bundle_source(maps, digest)}, TrialImage("simulated", runner=True)
    trial = trial_manifest(name, {"task": task, "agent": {"name": "oracle"}, "environment": environment(image)}, digest)
    trial["spec"]["environment"]["podTemplate"] = {"spec": placement(NODE)}
    return {**trial, "metadata": {**trial["metadata"], "namespace": namespace}}


async def _size(client: WatchingClient, namespace: str, trial: Object) -> int:
    await client.create({**trial, "metadata": {**trial["metadata"], "name": "many"}})
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not finished(found := await client.get(TRIALS, namespace, "many")):
            await asyncio.sleep(POLL_SECONDS)
    _require_complete([found])
    await client.delete(TRIALS, namespace, "many")
    return status_bytes(found)


async def _release_all(simulation: Simulation) -> None:
    """Finish all agents, as fast as the operator starts their verifiers, so that the lags are those of a busy operator."""
    for pod in simulation.working:
        while simulation.released_and_waiting >= CONCURRENCY:
            await asyncio.sleep(0.01)
        simulation.release(pod)


async def _round(client: WatchingClient, namespace: str, trial: Object, names: Sequence[str], simulation: Simulation) -> Round:
    simulation.lags.clear()
    before, started = await scrape(client), time.monotonic()
    await _all(names, lambda name: client.create({**trial, "metadata": {**trial["metadata"], "name": name}}))
    _print(f"{len(names)} trials were created in {time.monotonic() - started:.0f} s")
    await _until(
        lambda: len(simulation.runners.pods) >= len(names), lambda: f"{len(simulation.runners.pods)} trials have their pod"
    )
    admitted = time.monotonic()
    _print(f"all have their pod after {admitted - started:.0f} s; {len(simulation.working)} agents work")
    await _until(lambda: len(simulation.working) >= len(names), lambda: f"{len(simulation.working)} agents work")
    working = time.monotonic()
    open_execs = await _open_execs(client)
    released = time.monotonic()
    _print(f"all agents work after {working - started:.0f} s; now each ends")
    await _release_all(simulation)
    await _until_finished(client, len(names) + before.get("multistep_trials_finished_total", 0.0))
    finished, after = time.monotonic(), await scrape(client)
    _print(f"all finished after {finished - started:.0f} s")
    _require_complete(await client.list_all(TRIALS, namespace))
    await _remove(names, client, namespace)

    def spent(name: str) -> float:
        return after.get(name, 0.0) - before.get(name, 0.0)

    events = spent("multistep_api_requests_total/create/events")
    return Round(
        trials=len(names),
        admit_seconds=admitted - started,
        start_seconds=working - started,
        finish_seconds=finished - released,
        cpu_seconds=spent("process_cpu_seconds_total"),
        peak_bytes=after["multistep_peak_memory_bytes"],
        rss_bytes=(await scrape(client))["process_resident_memory_bytes"],
        writes=sum(spent(f"multistep_api_requests_total/{verb}") for verb in _WRITES) - events,
        events=events,
        requests=spent("multistep_api_requests_total"),
        execs=spent("multistep_exec_sessions_total"),
        open_execs=open_execs,
        lags=list(simulation.lags),
    )


async def scrape(client: WatchingClient) -> Samples:
    """Return totals of the operator's metrics by NAME, NAME/VERB and NAME/VERB/RESOURCE. Requests for Leases are excluded."""
    totals: Samples = {}
    for sample, value in (await samples(client)).items():
        name, _, labels = sample.partition("{")
        if 'resource="leases"' in labels:
            continue
        verb, resource = (labels.partition(f'{label}="')[2].partition('"')[0] for label in ("verb", "resource"))
        for key in {name, f"{name}/{verb}", f"{name}/{verb}/{resource}"}:
            totals[key] = totals.get(key, 0.0) + value
    return totals


async def _open_execs(client: WatchingClient) -> float:
    """Return how many exec streams stay open at the API server: the minimum of several samples."""
    found = []
    for _ in range(8):
        await asyncio.sleep(POLL_SECONDS)
        shown = await samples(client, "/metrics")
        execs = [value for name, value in shown.items() if name.startswith("apiserver_longrunning_requests") and '="exec"' in name]
        found.append(sum(execs))
    return min(found)


def _require_complete(trials: Iterable[Object]) -> None:
    """Raise RuntimeError unless each trial is Complete with the expected rewards after one attempt."""
    for found in trials:
        status = found["status"]
        mean = {key: round(value, 6) for key, value in (status.get("rewards") or {}).items()}
        if (status["phase"], mean, status["attempt"]) != ("Complete", REWARDS, 1):
            raise RuntimeError(f"{found['metadata']['name']} went wrong: {json.dumps(status)[:2000]}")


async def _remove(names: Iterable[str], client: WatchingClient, namespace: str) -> None:
    """Delete these trials, and wait until they and their pods are gone."""
    await _all(names, lambda name: client.delete(TRIALS, namespace, name))
    async with asyncio.timeout(DEADLINE_SECONDS):
        for resource in (TRIALS, PODS):
            while await client.list_metadata(resource, namespace):
                await asyncio.sleep(POLL_SECONDS)


async def _all(names: Iterable[str], act: Callable[[str], Awaitable[object]]) -> None:
    waiting = iter(names)

    async def work() -> None:
        for name in waiting:
            await act(name)

    await asyncio.gather(*(work() for _ in range(CONCURRENCY)))


async def _until(done: Callable[[], bool], state: Callable[[], str]) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        polls = 0
        while not done():
            await asyncio.sleep(POLL_SECONDS)
            if (polls := polls + 1) % 30 == 0:
                _print(state())


async def _until_finished(client: WatchingClient, wanted: float) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while (await scrape(client)).get("multistep_trials_finished_total", 0.0) < wanted:
            await asyncio.sleep(2 * POLL_SECONDS)


def _print(what: str) -> None:
    print(f"bench: simulated: {what}", file=sys.stderr, flush=True)
